"""Vosk's WebSocket, as telephone switches and Jigasi speak it: one reply for each message of audio.

A reply is the text so far of an utterance, or the result of one that has ended. It comes once the audio of its message
has been heard, so a recording that is sent as fast as possible gets the replies of one that is spoken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from harken.decoding.logit_rules import fitting_hotwords
from harken.errors import HarkenError, OptionError
from harken.formats import main_speaker
from harken.option_types import checked_value
from harken.results import Segment, Word
from harken.serve.errors import NORMAL, RequestError, object_in, plain_error, request_error
from harken.serve.guard import Guard, Tickets
from harken.serve.live.audio import AudioFormat
from harken.serve.live.connection import serve_socket
from harken.serve.live.translator import Audio, CloseStream, Flush, HangUp, Mark, Outputs, Translator
from harken.serve.rest.forms import parse_number
from harken.serve.service import Service
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import Flushed, LiveUpdate, OpenStream
from harken.streaming import FinalSegment, Interim, SpeechEnded, StreamOptions
from harken.text import from_language_tag
from harken.transcribe import TranscribeOptions

TELEPHONE_RATE_HZ = 8_000
STREAM_OPTIONS = StreamOptions(sentence_pause_s=0.5, pause_s=1.0)
"""Callers wait for the end of a turn, which Vosk finds after about as long a pause."""
HEARD = "heard"
"""Token of the mark behind the audio of a message."""
UNKNOWN_WORD = "[unk]"
"""What stands for all other words in a list of phrases."""


def make_vosk_app(service: Service) -> Starlette:
    """Return the application that listens at an address of its own.

    There are no keys in this protocol, so any client that can connect is served, but no foreign web page. The path may
    name a language.
    """

    async def serve(socket: WebSocket) -> None:
        await serve_socket(service, socket, VoskTranslator(service, socket.path_params["language"]))

    options = replace(service.options, api_key=(), auth=False)
    guard = Middleware(
        Guard,
        options=options,
        tickets=Tickets(),
        answer_error=lambda path, problem: plain_error(problem),
        on_response=service.metrics.record_response,
    )
    return Starlette(routes=[WebSocketRoute("/{language:path}", serve)], middleware=[guard])


class VoskTranslator(Translator):
    """A client as a translator. The protocol has no errors: what is wrong is the reason of the end of the connection.

    Parameters
    ----------
    service : Service
    language : str
        A tag of a language; it is detected if it is empty.
    """

    def __init__(self, service: Service, language: str = "") -> None:
        self._service = service
        self._language = language
        self._model = service.models.ids[0]
        self._hotwords: tuple[str, ...] = ()
        self._format = AudioFormat(rate=TELEPHONE_RATE_HZ)
        self._with_words, self._with_speakers, self._n_alternatives = True, False, 0
        self._is_open = False
        self._partial = ""
        self._segments: list[Segment] = []  # of the utterance that ends
        self._results: list[list[Segment]] = []  # of utterances that have ended, and have not been told

    def received(self, message: str | bytes) -> Outputs:
        try:
            if isinstance(message, bytes):
                yield from self._take(message)
            else:
                yield from self._obey(object_in(message, _unknown_message()))
        except HarkenError as error:
            raise request_error(error, {"rate": "sample_rate"}) from error

    def updated(self, update: LiveUpdate) -> Outputs:
        match update:
            case Interim():
                self._partial = update.committed + update.tentative
            case FinalSegment(segment=segment):
                self._segments.append(segment)
            case SpeechEnded():
                self._partial = ""
                if self._segments:
                    self._results.append(self._segments)
                self._segments = []
            case Flushed(token=token) if token == HEARD:
                yield (
                    self._result(self._results.pop(0))
                    if self._results
                    else _reply(partial=_plain(self._partial))
                )
            case Failed(failure=failure):
                yield from self._hang_up(request_error(failure))

    def ended(self, problem: RequestError) -> Outputs:
        yield CloseStream()
        yield from self._hang_up(problem)

    def _take(self, audio: bytes) -> Outputs:
        if not self._is_open:
            self._is_open = True
            options = TranscribeOptions(
                language=from_language_tag(self._language), hotwords=self._hotwords, word_timestamps=True
            )
            yield OpenStream(self._model, options, STREAM_OPTIONS, speakers=self._with_speakers)
        yield Audio(audio, self._format)
        yield Mark(HEARD)

    def _obey(self, message: Mapping[str, Any]) -> Outputs:
        match message:
            case {"config": dict(config)}:
                self._configure(config)
            case {"reset": _}:
                yield Flush()
                yield self._rest()
            case {"eof": _}:
                yield CloseStream()
                yield self._rest()
                yield HangUp(NORMAL, "")
            case _:
                raise _unknown_message()

    def _configure(self, config: Mapping[str, Any]) -> None:
        """Take a configuration; but for the rate it is that of streams that are opened later."""
        if "sample_rate" in config:
            rate = parse_number("sample_rate", str(config["sample_rate"]))  # Vosk takes texts too
            self._format = AudioFormat(rate=round(rate))
        if model := checked_value("model", config.get("model"), str | None):
            self._model = self._service.models.resolve(model)
        phrases = checked_value("phrase_list", config.get("phrase_list") or (), tuple[str, ...])
        self._hotwords = fitting_hotwords(phrase for phrase in phrases if phrase != UNKNOWN_WORD)
        self._with_words = bool(config.get("words", self._with_words))
        self._with_speakers = bool(config.get("speakers", self._with_speakers))
        n = checked_value("max_alternatives", config.get("max_alternatives", self._n_alternatives), int)
        if n < 0:
            raise OptionError("max_alternatives", n, "an integer from 0 on")
        self._n_alternatives = n

    def _rest(self) -> str:
        """Return the result of all that has not been told."""
        results, self._results = self._results, []
        return self._result([segment for result in results for segment in result])

    def _result(self, segments: list[Segment]) -> str:
        words = [word for segment in segments for word in segment.words]
        fields: dict[str, Any] = {"result": [*map(_word_json, words)]} if self._with_words and words else {}
        fields["text"] = _plain("".join(segment.text for segment in segments))
        fields |= _speaker_json(
            max(segments, key=lambda segment: segment.end_s - segment.start_s, default=None)
        )
        if self._n_alternatives:
            return _reply(alternatives=[{"confidence": _confidence(words)} | fields])
        return _reply(**fields)

    def _hang_up(self, problem: RequestError) -> Outputs:
        if self._results:
            yield self._rest()
        yield HangUp(problem.close_code, f"{problem.code}: {problem}")


def _reply(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _plain(text: str) -> str:
    """Return a text as switches can read it: FreeSWITCH takes a reply with two quotation marks in a row for silence."""
    return text.strip().replace('"', "'")


def _word_json(word: Word) -> dict[str, Any]:
    times = {"start": round(word.start_s, 2), "end": round(word.end_s, 2)}
    return {"conf": round(word.probability, 6)} | times | {"word": _plain(word.text)} | _speaker_json(word)


def _speaker_json(said: Segment | Word | None) -> dict[str, str]:
    """Return who has said something most; no key if nobody is known."""
    return {"speaker": _plain(main_speaker(said.speakers))} if said and said.speakers else {}


def _confidence(words: list[Word]) -> float:
    return round(sum(word.probability for word in words) / max(1, len(words)), 6)


def _unknown_message() -> RequestError:
    return RequestError(
        "a message of text is unknown; allowed is an object with config, eof or reset", code="invalid_value"
    )

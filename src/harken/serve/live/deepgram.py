"""Deepgram's live API: a WebSocket that is configured in its address, takes audio, and sends results.

An utterance has interim results, of which each replaces the one before, and one that is final.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from typing import Any
from uuid import uuid4

from starlette.datastructures import QueryParams
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from harken.errors import OptionError
from harken.results import Segment, Word
from harken.serve.errors import NORMAL, RequestError, object_in, request_error
from harken.serve.live.audio import CONTAINER, AudioFormat
from harken.serve.live.connection import serve_socket
from harken.serve.live.translator import (
    Audio,
    Check,
    CloseStream,
    Flush,
    HangUp,
    Mark,
    OpenStream,
    Outputs,
    StreamClosed,
    Translator,
)
from harken.serve.rest.deepgram import (
    MULTILINGUAL,
    alternative_json,
    audio_format,
    languages_json,
    listen_options,
    metadata_json,
    model_info,
    model_name,
    model_uuid,
)
from harken.serve.rest.forms import Form, bad_field
from harken.serve.service import Service
from harken.serve.work.jobs import Failed, Flushed, LiveUpdate
from harken.streaming import FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamOptions

OFF = "false"
PAUSE_MS, MIN_PAUSE_MS, MAX_PAUSE_MS = 500, 350, 10_000
"""Silence that ends an utterance, if nobody says otherwise; shorter ones would cut sentences into words."""
CHANNELS = (0, 1)
"""The channel of a message, and how many there are."""
FINALIZE = "finalize"
"""Token of a flush; that of a mark is the end of the last word before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """The request of a client, from the address.

    Parameters
    ----------
    stream : OpenStream
        What its audio is transcribed with.
    audio : AudioFormat
    interim : bool
        True for interim results.
    ends_speech : bool
        True to tell when a pause ends the speech.
    vad_events : bool
        True to tell when speech starts.
    multilingual : bool
        True to tell the languages.
    utterance_end_s : float or None
        Silence behind the last word that is told, in seconds; None if it is not.
    """

    stream: OpenStream
    audio: AudioFormat
    interim: bool
    ends_speech: bool
    vad_events: bool
    multilingual: bool
    utterance_end_s: float | None


def routes(service: Service) -> list[BaseRoute]:
    """Return the route of the WebSocket."""

    async def serve(socket: WebSocket) -> None:
        try:
            asked = parse_query(socket.query_params, service)
        except OptionError as error:
            raise request_error(error) from error
        await serve_socket(service, socket, DeepgramTranslator(asked, str(uuid4())))

    return [WebSocketRoute("/v1/listen", serve)]


def parse_query(query: QueryParams, service: Service) -> LiveRequest:
    """Read the parameters of the address; others are ignored, as there are many.

    Raises
    ------
    RequestError, OptionError
        If a value is not allowed.
    """
    form = Form(query.multi_items())
    utterance_end_ms = _milliseconds(form, "utterance_end_ms")
    model = service.models.resolve(model_name(form) or service.models.ids[0])
    wish = (model, listen_options(form), _stream_options(form))
    return LiveRequest(
        stream=OpenStream(*wish, speakers=form.flag("diarize")),
        audio=audio_format(form),
        interim=form.flag("interim_results"),
        ends_speech=_endpointing(form) != OFF,
        vad_events=form.flag("vad_events"),
        multilingual=form.text("language") == MULTILINGUAL,
        utterance_end_s=None if utterance_end_ms is None else utterance_end_ms / 1000,
    )


def _endpointing(form: Form) -> str:
    return (form.text("endpointing") or "").lower()


def _stream_options(form: Form) -> StreamOptions:
    given = _endpointing(form)
    if given == OFF:
        return StreamOptions()
    pause_ms = PAUSE_MS if given in ("", "true") else _milliseconds(form, "endpointing") or 0.0
    pause_s = min(max(pause_ms, MIN_PAUSE_MS), MAX_PAUSE_MS) / 1000
    return StreamOptions(sentence_pause_s=pause_s, pause_s=pause_s)


def _milliseconds(form: Form, name: str) -> float | None:
    value = form.number(name)
    if value is not None and value < 0:
        raise bad_field(name, f"{value:g}", "a number of milliseconds from 0 on")
    return value


class DeepgramTranslator(Translator):
    """A client as a translator.

    Parameters
    ----------
    asked : LiveRequest
    request_id : str
    """

    def __init__(self, asked: LiveRequest, request_id: str) -> None:
        self._asked, self._request_id = asked, request_id
        self._is_open = False
        self._n_bytes = 0
        self._words: list[Word] = []  # committed ones of the utterance in progress
        self._segments: list[Segment] = []  # final ones that have not been told
        self._speakers: dict[str, int] = {}  # numbers by name, in the order in which they were first told
        self._start_s = self._end_s = 0.0  # of the present result
        self._last_word_s = inf  # end of the last word before silence

    def opened(self) -> Outputs:
        yield Check(self._asked.stream)

    def received(self, message: str | bytes) -> Outputs:
        if isinstance(message, bytes):
            yield from self._take(message) if message else self._close()
            return
        allowed = "an object of type KeepAlive, Finalize or CloseStream"
        unknown = RequestError(f"a message of text is unknown; allowed is {allowed}", code="SchemaError")
        try:
            kind = object_in(message, unknown).get("type")
        except RequestError:
            kind = None
        match kind:
            case "KeepAlive":
                return
            case "Finalize":
                yield from self._finalize()
            case "CloseStream":
                yield from self._close()
            case _:
                yield self._error(unknown)

    def updated(self, update: LiveUpdate | StreamClosed) -> Outputs:
        match update:
            case SpeechStarted(audio_s=audio_s):
                self._last_word_s = inf
                if self._asked.vad_events:
                    yield _message("SpeechStarted", channel=CHANNELS, timestamp=round(audio_s, 3))
            case Interim():
                self._end_s = update.audio_s
                self._words += update.words
                if self._asked.interim:
                    yield self._results(alternative_json(update.committed + update.tentative, self._words))
            case FinalSegment(segment=segment):
                self._segments.append(segment)
            case SpeechEnded(audio_s=audio_s, reason=reason):
                self._end_s = audio_s
                if reason != "flush":  # else the flush tells
                    yield self._final(speech_final=self._asked.ends_speech and reason != "limit")
                    yield from self._silence()  # its audio may have come before the end was found
            case Flushed(token=token) if token == FINALIZE:
                yield self._final(speech_final=True, from_finalize=True)
            case Flushed(token=float(last_word_s)) if last_word_s == self._last_word_s:
                self._last_word_s = inf
                yield _message("UtteranceEnd", channel=CHANNELS, last_word_end=round(last_word_s, 3))
            case Failed(failure=failure):
                yield from self._hang_up(request_error(failure))

    def ended(self, problem: RequestError) -> Outputs:
        yield from self._close_stream()
        yield from self._hang_up(problem)

    def _take(self, audio: bytes) -> Outputs:
        if not self._is_open:
            self._is_open = True
            yield self._asked.stream
        self._n_bytes += len(audio)
        yield Audio(audio, self._asked.audio)
        yield from self._silence()

    def _silence(self) -> Outputs:
        """Have the end of the utterance told once the audio so far has been heard, if it ends in enough silence."""
        silence_s, told_s = self._received_s - self._last_word_s, self._asked.utterance_end_s
        if self._is_open and told_s is not None and silence_s >= told_s:
            yield Mark(self._last_word_s)

    def _finalize(self) -> Outputs:
        if self._is_open:
            yield Flush(FINALIZE)
        else:
            yield self._final(speech_final=True, from_finalize=True)

    def _close(self) -> Outputs:
        yield from self._close_stream()
        duration_s = self._end_s if self._asked.audio.format == CONTAINER else self._received_s
        yield _message("Metadata", **metadata_json(self._request_id, duration_s))
        yield HangUp(NORMAL, "")

    def _close_stream(self) -> Outputs:
        if self._is_open:
            yield CloseStream()
            self._is_open = False  # not before: if that is cut short, `ended` does it again

    def _hang_up(self, problem: RequestError) -> Outputs:
        yield self._error(problem)
        yield HangUp(problem.close_code, str(problem))

    @property
    def _received_s(self) -> float:
        """Seconds of audio that have come; of a container nobody knows, so it is silence that counts as long."""
        audio = self._asked.audio
        return inf if audio.format == CONTAINER else self._n_bytes / audio.bytes_per_s

    def _final(self, *, speech_final: bool, from_finalize: bool = False) -> str:
        """Return the final result of all that has not been told, which may be nothing."""
        segments, self._segments, self._words = self._segments, [], []
        words = [word for segment in segments for word in segment.words]
        text = "".join(segment.text for segment in segments)
        if words:
            self._last_word_s = words[-1].end_s
        for name in (name for word in words for name in word.speakers):
            self._speakers.setdefault(name, len(self._speakers))
        alternative = alternative_json(text, words, self._speakers)
        if self._asked.multilingual:
            alternative |= languages_json(segments)
        message = self._results(
            alternative, is_final=True, speech_final=speech_final, from_finalize=from_finalize
        )
        self._start_s = self._end_s
        return message

    def _results(
        self,
        alternative: dict[str, Any],
        *,
        is_final: bool = False,
        speech_final: bool = False,
        from_finalize: bool = False,
    ) -> str:
        model = self._asked.stream.model
        return _message(
            "Results",
            channel_index=CHANNELS,
            duration=round(self._end_s - self._start_s, 3),
            start=round(self._start_s, 3),
            is_final=is_final,
            speech_final=speech_final,
            from_finalize=from_finalize,
            channel={"alternatives": [alternative]},
            metadata={
                "request_id": self._request_id,
                "model_info": model_info(model),
                "model_uuid": model_uuid(model),
            },
        )

    def _error(self, problem: RequestError) -> str:
        variant = problem.code or problem.type
        return _message("Error", variant=variant, description=str(problem), message=str(problem))


def _message(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind} | fields, ensure_ascii=False)

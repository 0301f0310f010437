"""Deepgram's live API: a WebSocket that is configured in its address, takes audio, and sends results.

An utterance has interim results, of which each replaces the one before, and one that is final.
"""

from __future__ import annotations

import json
from math import inf
from typing import Any
from uuid import uuid4

from starlette.datastructures import QueryParams
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from harken.errors import OptionError
from harken.results import Segment, Word
from harken.serve.errors import NORMAL, RequestError, object_in, request_error
from harken.serve.live.audio import CONTAINER
from harken.serve.live.connection import serve_socket
from harken.serve.live.translator import Audio, Check, CloseStream, Flush, HangUp, Mark, Outputs, Translator
from harken.serve.rest.deepgram import (
    DIALECT,
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
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import Flushed, LiveUpdate, OpenStream
from harken.streaming import FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamOptions

OFF = "false"
PAUSE_S, MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 0.35, 10.0
"""Silence that ends an utterance, if nobody says otherwise; shorter ones would cut sentences into words."""
CHANNELS = (0, 1)
"""The channel of a message, and how many there are."""
FINALIZE = "finalize"
"""Token of a flush; that of a mark is the end of the last word before it."""


def routes(service: Service) -> list[BaseRoute]:
    """Return the route of the WebSocket."""

    async def serve(socket: WebSocket) -> None:
        try:
            translator = DeepgramTranslator(socket.query_params, service)
        except OptionError as error:
            raise DIALECT.problem(error) from error
        await serve_socket(service, socket, translator)

    return [WebSocketRoute("/v1/listen", serve)]


def _endpointing(form: Form) -> str:
    return (form.text("endpointing") or "").lower()


def _stream_options(form: Form) -> StreamOptions:
    given = _endpointing(form)
    if given == OFF:
        return StreamOptions()
    pause_s = PAUSE_S if given in ("", "true") else _seconds(form, "endpointing") or 0.0
    pause_s = min(max(pause_s, MIN_PAUSE_S), MAX_PAUSE_S)
    return StreamOptions(sentence_pause_s=pause_s, pause_s=pause_s)


def _seconds(form: Form, name: str) -> float | None:
    value = form.number(name)
    if value is not None and value < 0:
        raise bad_field(name, f"{value:g}", "a number of milliseconds from 0 on")
    return None if value is None else value / 1000


class DeepgramTranslator(Translator):
    """A client as a translator.

    Parameters
    ----------
    query : QueryParams
        Parameters of the address; those that are not known are ignored, as there are many.
    service : Service

    Attributes
    ----------
    stream : OpenStream
        What its audio is transcribed with.

    Raises
    ------
    RequestError, OptionError
        If a value is not allowed.
    """

    def __init__(self, query: QueryParams, service: Service) -> None:
        form = Form(query.multi_items())
        self._utterance_end_s = _seconds(form, "utterance_end_ms")  # silence behind the last word that is told
        model = service.models.resolve(model_name(form) or service.models.ids[0])
        wish = (model, listen_options(form), _stream_options(form))
        self.stream = OpenStream(*wish, speakers=form.flag("diarize"))
        self._audio = audio_format(form)
        self._tells_interims, self._tells_starts = form.flag("interim_results"), form.flag("vad_events")
        self._tells_ends = _endpointing(form) != OFF
        self._tells_languages = form.text("language") == MULTILINGUAL
        self._request_id = str(uuid4())
        self._n_bytes = 0
        self._words: list[Word] = []  # committed ones of the utterance in progress
        self._segments: list[Segment] = []  # final ones that have not been told
        self._speakers: dict[str, int] = {}  # numbers by name, in the order in which they were first told
        self._start_s = self._end_s = 0.0  # of the present result
        self._last_word_s = inf  # end of the last word before silence

    def opened(self) -> Outputs:
        yield Check(self.stream)

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
                yield Flush(FINALIZE)
            case "CloseStream":
                yield from self._close()
            case _:
                yield self._error(unknown)

    def updated(self, update: LiveUpdate) -> Outputs:
        match update:
            case SpeechStarted(audio_s=audio_s):
                if self._is_enough(audio_s - self._last_word_s):  # and its mark waits behind this audio
                    yield self._utterance_end()
                self._last_word_s = inf
                if self._tells_starts:
                    yield _message("SpeechStarted", channel=CHANNELS, timestamp=round(audio_s, 3))
            case Interim():
                self._end_s = update.audio_s
                self._words += update.words
                if self._tells_interims:
                    yield self._results(alternative_json(update.committed + update.tentative, self._words))
            case FinalSegment(segment=segment):
                self._segments.append(segment)
            case SpeechEnded(audio_s=audio_s, reason=reason):
                self._end_s = audio_s
                if reason != "flush":  # else the flush tells
                    yield self._final(speech_final=self._tells_ends and reason != "limit")
                    yield from self._silence()  # its audio may have come before the end was found
            case Flushed(token=token) if token == FINALIZE:
                yield self._final(speech_final=True, from_finalize=True)
            case Flushed(token=float(last_word_s)) if last_word_s == self._last_word_s:
                yield self._utterance_end()
            case Failed(failure=failure):
                yield from self._hang_up(request_error(failure))

    def ended(self, problem: RequestError) -> Outputs:
        yield CloseStream()
        yield from self._hang_up(problem)

    def _take(self, audio: bytes) -> Outputs:
        if not self._n_bytes:
            yield self.stream
        self._n_bytes += len(audio)
        yield Audio(audio, self._audio)
        yield from self._silence()

    def _silence(self) -> Outputs:
        """Have the end of the utterance told once the audio so far has been heard, if it ends in enough silence."""
        if self._is_enough(self._received_s - self._last_word_s):
            yield Mark(self._last_word_s)

    def _is_enough(self, silence_s: float) -> bool:
        return self._utterance_end_s is not None and silence_s >= self._utterance_end_s

    def _utterance_end(self) -> str:
        last_word_s, self._last_word_s = self._last_word_s, inf
        return _message("UtteranceEnd", channel=CHANNELS, last_word_end=round(last_word_s, 3))

    def _close(self) -> Outputs:
        yield CloseStream()
        duration_s = self._end_s if self._audio.format == CONTAINER else self._received_s
        if self._is_enough(duration_s - self._last_word_s):
            yield self._utterance_end()
        yield _message("Metadata", **metadata_json(self._request_id, duration_s))
        yield HangUp(NORMAL, "")

    def _hang_up(self, problem: RequestError) -> Outputs:
        yield self._error(problem)
        yield HangUp(problem.close_code, str(problem))

    @property
    def _received_s(self) -> float:
        """Seconds of audio that have come; of a container nobody knows, so it is silence that counts as long."""
        return inf if self._audio.format == CONTAINER else self._n_bytes / self._audio.bytes_per_s

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
        if self._tells_languages:
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
                "model_info": model_info(self.stream.model),
                "model_uuid": model_uuid(self.stream.model),
            },
        )

    def _error(self, problem: RequestError) -> str:
        variant = problem.code or problem.type
        return _message("Error", variant=variant, description=str(problem), message=str(problem))


def _message(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind} | fields, ensure_ascii=False)

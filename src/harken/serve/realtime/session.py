"""A Realtime transcription session as a state machine: what the client sends, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from harken.serve.close_codes import TRY_LATER, UNFORESEEN
from harken.serve.errors import RequestError, request_error
from harken.serve.pcm import PcmDecoder
from harken.serve.realtime.config import ENCODINGS, SessionConfig
from harken.serve.realtime.dialects import (
    MAX_NAME_CHARS,
    invalid_value,
    option_paths,
    shown_beta_config,
    shown_config,
    updated_config,
)
from harken.serve.realtime.events import (
    EventWriter,
    check_event,
    client_event_id,
    decoded_audio,
    new_id,
    read_json,
)
from harken.serve.realtime.socket_pump import CloseStream, Feed, Flush, HangUp, OpenStream, Output, StreamClosed
from harken.serve.realtime.turns import Turns
from harken.serve.work.live_job import Failed, LiveUpdate

MIN_COMMIT_S = 0.1
BLOCK_S = 1.0
"""Seconds of a long append that are decoded at once."""
RETRY_STATUSES = (429, 503)


class RealtimeSession:
    """A session, as `harken.serve.realtime.socket_pump.StateMachine`.

    Parameters
    ----------
    config : SessionConfig
    resolve_model : callable
        Returns the id of a model by its name, or raises `RequestError`.
    expires_at : int, optional
        When the session ends at the latest, in seconds since 1970.
    beta : bool
        True for the beta dialect; a client that sends its events switches to it.
    query : mapping
        Parameters of the address: the intent, and a model.
    new_id : callable
        Makes ids with a prefix.
    """

    def __init__(
        self,
        config: SessionConfig,
        resolve_model: Callable[[str], str],
        *,
        expires_at: int | None = None,
        beta: bool = False,
        query: Mapping[str, str] = MappingProxyType({}),
        new_id: Callable[[str], str] = new_id,
    ) -> None:
        self._resolve_model, self._expires_at = resolve_model, expires_at
        self._writer = EventWriter(beta, new_id)
        self._turns = Turns(self._writer)
        self._id, self._query = new_id("sess"), query
        self._configure(config)
        self._decoder: PcmDecoder | None = None
        self._is_open = self._is_refused = False
        self._opened_with = config
        self._next_start_s = self._received_s = 0.0
        self._event_id: str | None = None
        self._paths: Mapping[str, str] = option_paths(None)
        self._hang_up: HangUp | None = None

    def opened(self) -> Iterator[Output]:
        problem = self._read_query()
        yield self._session_event("created")
        if problem:
            yield self._writer.error(problem)

    def received(self, message: str | bytes) -> Iterator[Output]:
        self._event_id = None
        try:
            event = read_json(message)
            self._event_id = client_event_id(event)
            yield from self._HANDLERS[check_event(event)](self, event)
        except RequestError as error:
            yield self._writer.error(error, self._event_id)

    def updated(self, update: LiveUpdate | StreamClosed) -> Iterator[Output]:
        match update:
            case Failed(failure=failure):
                problem = request_error(failure, self._paths)
                yield from self._turns.fail(problem, self._received_s)
                yield self._writer.error(problem)
                yield HangUp(UNFORESEEN, "stream_failed", str(problem))
            case StreamClosed():
                self._turns.end_stream(self._next_start_s, self._opened_with.turn_detection is not None)
                if self._hang_up:
                    yield self._last_error(self._hang_up)
            case _:
                yield from self._turns.update(update)

    def refused(self, error: Exception) -> Iterator[Output]:
        self._is_refused, self._is_open = True, False
        problem = request_error(error, self._paths)
        yield from self._turns.fail(problem, self._received_s)
        yield self._writer.error(problem, self._event_id)
        if problem.status in RETRY_STATUSES:
            yield HangUp(TRY_LATER, problem.code or "server_busy", str(problem))

    def ended(self, hang_up: HangUp) -> Iterator[Output]:
        self._hang_up = hang_up
        if not self._is_open or self._decoder is None:
            yield self._last_error(hang_up)
            return
        yield Feed(self._decoder.flush())
        if self._config.turn_detection is None and self._uncommitted_s >= MIN_COMMIT_S:
            yield from self._commit({})
        yield CloseStream()

    def _read_query(self) -> RequestError | None:
        """Take the model that the address names; return what is wrong with it."""
        intent, model = self._query.get("intent", "transcription"), self._query.get("model")
        if intent != "transcription":
            return invalid_value("intent", intent, "'transcription'")
        if model is None:
            return None
        try:
            self._resolve_model(model[:MAX_NAME_CHARS])
        except RequestError as error:
            return error
        self._configure(replace(self._config, model=model))
        return None

    def _update(self, event: dict[str, Any]) -> Iterator[Output]:
        session = event["session"]
        config, paths = updated_config(self._config, session), option_paths(session)
        if self._received_s and config.audio_format != self._config.audio_format:
            raise invalid_value(
                paths["format"], config.format, f"{self._config.format} at its rate, as audio has come in it"
            )
        try:
            self._resolve_model(config.model)
        except RequestError as error:
            raise RequestError(str(error), type=error.type, code=error.code, param=paths["model"]) from None
        self._is_refused, self._paths = False, paths
        self._configure(config)
        yield self._session_event("updated")

    def _update_beta(self, event: dict[str, Any]) -> Iterator[Output]:
        self._writer.beta = True
        yield from self._update(event)

    def _append(self, event: dict[str, Any]) -> Iterator[Output]:
        data = decoded_audio(event["audio"])
        if not data or self._is_refused:
            return
        if not self._is_open or self._opened_with != self._stream_config:
            yield from self._open_stream()
        if self._is_refused:
            return
        assert self._decoder, "it comes with the first stream"
        block_bytes = round(BLOCK_S * self._decoder.bytes_per_s)
        for start in range(0, len(data), block_bytes):
            block = data[start : start + block_bytes]
            self._received_s += len(block) / self._decoder.bytes_per_s
            yield Feed(self._decoder.feed(block))
        yield from self._check_silence()

    def _open_stream(self) -> Iterator[Output]:
        """Open a stream; one that was opened with another configuration is closed first."""
        config = self._opened_with = self._stream_config
        self._next_start_s = self._received_s
        if self._is_open:
            yield CloseStream()
        else:
            self._turns.end_stream(self._next_start_s, config.turn_detection is not None)
        self._decoder = self._decoder or PcmDecoder(ENCODINGS[config.format], config.rate_hz)
        self._is_open = True
        yield OpenStream(config.model, config.transcribe_options(), config.stream_options())

    def _check_silence(self) -> Iterator[Output]:
        turns = self._config.turn_detection
        limit_ms = turns.idle_timeout_ms if turns and turns.type == "server_vad" else None
        silence_s = self._received_s - self._turns.active_s
        if limit_ms is not None and self._turns.is_silent and silence_s * 1000 >= limit_ms:
            yield Flush(self._turns.check_silence(self._received_s))

    def _commit(self, event: dict[str, Any]) -> Iterator[Output]:
        if self._uncommitted_s < MIN_COMMIT_S:
            raise RequestError(
                f"{max(self._uncommitted_s, 0.0) * 1000:.0f} ms of audio have come since the last commit; "
                f"a commit takes {MIN_COMMIT_S * 1000:.0f} ms",
                code="input_audio_buffer_commit_empty",
            )
        mark, events = self._turns.commit(self._received_s)
        yield from events
        yield Flush(mark)

    def _clear(self, event: dict[str, Any]) -> Iterator[Output]:
        if self._is_open:
            yield Flush(self._turns.clear(self._received_s))
        yield self._writer.event("input_audio_buffer.cleared")

    @property
    def _uncommitted_s(self) -> float:
        """Seconds of audio that belong to no item yet."""
        return self._received_s - self._turns.committed_s

    @property
    def _stream_config(self) -> SessionConfig:
        """The configuration as far as it matters to the stream."""
        return replace(self._config, include=())

    def _configure(self, config: SessionConfig) -> None:
        self._config = config
        self._turns.include = config.include

    def _session_event(self, kind: str) -> str:
        prefix, show = (
            ("transcription_session", shown_beta_config) if self._writer.beta else ("session", shown_config)
        )
        return self._writer.event(f"{prefix}.{kind}", session=show(self._config, self._id, self._expires_at))

    def _last_error(self, hang_up: HangUp) -> str:
        return self._writer.error(RequestError(hang_up.reason, type="server_error", code=hang_up.cause))

    _HANDLERS: Mapping[str, Callable[[RealtimeSession, dict[str, Any]], Iterator[Output]]] = MappingProxyType(
        {
            "session.update": _update,
            "transcription_session.update": _update_beta,
            "input_audio_buffer.append": _append,
            "input_audio_buffer.commit": _commit,
            "input_audio_buffer.clear": _clear,
        }
    )

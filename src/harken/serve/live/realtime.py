"""OpenAI's Realtime transcription: live speech over a WebSocket, in the present dialect and in the beta one."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import time
from types import MappingProxyType
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from harken.errors import HarkenError
from harken.serve.errors import NORMAL, RESTART, TRY_LATER, RequestError, object_in, request_error
from harken.serve.guard import Ticket, Tickets, given_keys
from harken.serve.live.connection import IDLE, SESSION_LIMIT, serve_socket
from harken.serve.live.realtime_config import (
    MAX_NAME_CHARS,
    SessionConfig,
    checked_object,
    invalid_value,
    option_paths,
    shown_config,
    updated_config,
)
from harken.serve.live.translator import Audio, Check, CloseStream, HangUp, Outputs, Translator
from harken.serve.live.turns import Turns, error_json, event_json, new_id
from harken.serve.rest.forms import received_body
from harken.serve.service import Service
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import LiveUpdate, OpenStream

BETA_SUBPROTOCOL = "openai-beta.realtime-v1"
BETA_HEADER, BETA_VERSION = "openai-beta", "realtime=v1"
MAX_BODY_BYTES = 1 << 16
MAX_MESSAGE_BYTES = (15 << 20) + 4096
"""Largest message: an append of 15 MiB, and what is around it."""
MIN_COMMIT_S = 0.1
MAX_APPEND_CHARS = 15 << 20
MAX_EVENT_ID_CHARS = 512
CONVERSATIONAL = ("gpt-realtime", "gpt-4o-realtime", "gpt-4o-mini-realtime")
"""Beginnings of the names of models that talk."""
MIN_TICKET_S, MAX_TICKET_S, TICKET_S = 10, 7_200, 600
"""Seconds that a short-lived key may be valid, and is if nobody says otherwise."""
RETRY_STATUSES = (429, 503)
_GOODBYES: Mapping[str | None, tuple[str, int]] = MappingProxyType(
    {
        IDLE: ("idle_timeout", NORMAL),
        SESSION_LIMIT: ("session_expired", NORMAL),
        "draining": ("draining", RESTART),
    }
)
"""Codes of the last error event and of the WebSocket, by the reason why the server ends a session."""


def routes(service: Service, tickets: Tickets) -> list[BaseRoute]:
    """Return the routes of Realtime transcription."""

    async def realtime(socket: WebSocket) -> None:
        limit_s, offered = service.options.session_limit_s, socket.scope["subprotocols"]
        session = RealtimeSession(
            _first_config(tickets, socket.headers),
            service.models.resolve,
            expires_at=int(time() + limit_s) if limit_s else None,
            beta=BETA_SUBPROTOCOL in offered or socket.headers.get(BETA_HEADER) == BETA_VERSION,
            query=socket.query_params,
        )
        await serve_socket(service, socket, session, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)

    async def client_secrets(request: Request) -> Response:
        """Make a short-lived key for a browser: OpenAI's Realtime API."""
        body = checked_object(await asked_by(request), "", ("expires_after", "session"))
        ticket, config = await make_ticket(
            body.get("session") or {}, body.get("expires_after"), "expires_after"
        )
        session = shown_config(config, new_id("sess"), beta=False)
        return JSONResponse({"value": ticket.value, "expires_at": ticket.expires_at, "session": session})

    async def transcription_sessions(request: Request) -> Response:
        """Make a short-lived key for a browser, in the beta dialect."""
        body = await asked_by(request)
        secret = checked_object(body.pop("client_secret", None) or {}, "client_secret", ("expires_at",))
        ticket, config = await make_ticket(body, secret.get("expires_at"), "client_secret.expires_at")
        session = shown_config(config, new_id("sess"), beta=True)
        secret = {"value": ticket.value, "expires_at": ticket.expires_at}
        return JSONResponse(session | {"client_secret": secret})

    async def asked_by(request: Request) -> dict[str, Any]:
        """Return the body of a request for a ticket; not from who has only a ticket, which would never expire then."""
        if any(map(tickets.find, given_keys(request.headers))):
            raise RequestError(
                "a short-lived key cannot make others; the server's own key is needed",
                status=403,
                type="authentication_error",
                code="invalid_api_key",
            )
        body = await received_body(request, MAX_BODY_BYTES)
        return _read_json(body) if body.strip() else {}

    async def make_ticket(session: Any, expires_after: Any, path: str) -> tuple[Ticket, SessionConfig]:
        """Return a ticket for sessions that begin with an update, and their configuration."""
        config = updated_config(SessionConfig(), session)
        try:
            await service.check(config.stream())
        except HarkenError as error:
            raise request_error(error, option_paths(session)) from error
        given = checked_object({} if expires_after is None else expires_after, path, ("anchor", "seconds"))
        if given.get("anchor", "created_at") != "created_at":
            raise invalid_value(f"{path}.anchor", given["anchor"], "'created_at'")
        seconds = given.get("seconds", TICKET_S)
        if not isinstance(seconds, int) or isinstance(seconds, bool):
            raise invalid_value(f"{path}.seconds", seconds, "an integer", "invalid_type")
        if not MIN_TICKET_S <= seconds <= MAX_TICKET_S:
            raise invalid_value(f"{path}.seconds", seconds, f"{MIN_TICKET_S} to {MAX_TICKET_S}")
        return tickets.make(seconds, config), config

    return [
        WebSocketRoute("/v1/realtime", realtime),
        Route("/v1/realtime/client_secrets", client_secrets, methods=["POST"]),
        Route("/v1/realtime/transcription_sessions", transcription_sessions, methods=["POST"]),
    ]


def _first_config(tickets: Tickets, headers: Headers) -> SessionConfig:
    """Return the configuration that a session begins with: that of its ticket, if it has one."""
    for key in given_keys(headers):
        ticket = tickets.find(key)
        if ticket and isinstance(ticket.session, SessionConfig):
            return ticket.session
    return SessionConfig()


class RealtimeSession(Translator):
    """The translator of a session.

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
    """

    def __init__(
        self,
        config: SessionConfig,
        resolve_model: Callable[[str], str],
        *,
        expires_at: int | None = None,
        beta: bool = False,
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._resolve_model, self._expires_at = resolve_model, expires_at
        self._turns = Turns(config, beta=beta)
        self._id, self._query = new_id("sess"), query
        self._configure(config)
        self._is_refused = False
        self._opened_with: OpenStream | None = None
        self._received_s = 0.0
        self._event_id: str | None = None
        self._paths: Mapping[str, str] = option_paths(None)

    def opened(self) -> Outputs:
        problem = self._read_query()
        yield self._session_event("created")
        if problem:
            yield error_json(problem)

    def received(self, message: str | bytes) -> Outputs:
        self._event_id = None
        try:
            event = _read_json(message)
            self._event_id = _client_event_id(event)
            handle, *names = self._handler(event)
            yield from handle(self, *(event[name] for name in names))
        except RequestError as error:
            yield error_json(error, self._event_id)

    def updated(self, update: LiveUpdate) -> Outputs:
        match update:
            case Failed(failure=failure):
                problem = request_error(failure, self._paths)
                yield from self._turns.fail(problem, self._received_s)
                yield error_json(problem)
                yield HangUp(problem.close_code, str(problem))
            case _:
                yield from self._turns.update(update)

    def ended(self, problem: RequestError) -> Outputs:
        close_code = problem.close_code
        if problem.code in _GOODBYES:
            if self._opened_with and self._config.turns is None and self._uncommitted_s >= MIN_COMMIT_S:
                yield from self._commit()
            yield CloseStream()
            code, close_code = _GOODBYES[problem.code]
            yield error_json(RequestError(str(problem), type="server_error", code=code))
        yield HangUp(close_code, str(problem))

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
            # Clients name the model of a conversation here, and that of the transcription in their first update.
            return None if model.startswith(CONVERSATIONAL) else error
        self._configure(replace(self._config, model=model))
        return None

    def _handler(self, event: dict[str, Any]) -> tuple[Any, ...]:
        """Return what takes an event, and the names of the fields that it takes; all of them are there, and no others.

        Raises
        ------
        RequestError
            If it is not an event of transcription sessions, or has a field too few or too many.
        """
        name = event.get("type")
        if name is None:
            raise RequestError("the event has no type", code="missing_required_parameter", param="type")
        if not isinstance(name, str) or name not in self._HANDLERS:
            raise invalid_value("type", name, ", ".join(self._HANDLERS))
        handler = self._HANDLERS[name]
        for field in handler[1:]:
            if field not in event:
                message = f"an event of type {name} has no {field}"
                raise RequestError(message, code="missing_required_parameter", param=field)
        checked_object(event, "", ("type", "event_id", *handler[1:]))
        return handler

    def _update(self, session: Any) -> Outputs:
        config, paths = updated_config(self._config, session), option_paths(session)
        if self._received_s and config.audio_format != self._config.audio_format:
            own, other = (f"{each.format} at {each.rate_hz} Hz" for each in (self._config, config))
            raise invalid_value(paths["format"], other, f"{own}, as audio has come in it")
        try:
            yield Check(config.stream())
        except Exception as error:
            raise request_error(error, paths) from error
        self._is_refused, self._paths = False, paths
        self._configure(config)
        yield self._session_event("updated")

    def _update_beta(self, session: Any) -> Outputs:
        self._turns.beta = True
        yield from self._update(session)

    def _append(self, audio: Any) -> Outputs:
        data = _decoded_audio(audio)
        if not data or self._is_refused:
            return
        try:
            if self._opened_with != self._stream:
                yield from self._open_stream()
            self._received_s += len(data) / self._config.audio_format.bytes_per_s
            yield Audio(data, self._config.audio_format)
        except Exception as error:
            yield from self._refuse(error)
        else:
            yield from self._turns.check_silence(self._received_s)

    def _open_stream(self) -> Outputs:
        """Open a stream, behind one that was opened with another configuration."""
        if self._opened_with:
            yield CloseStream()
        self._opened_with = self._stream
        self._turns.begin_stream(self._received_s, self._stream)
        yield self._stream

    def _refuse(self, error: Exception) -> Outputs:
        """Tell why there is no stream, behind what an open one has heard, and ask for none until something changes."""
        self._is_refused, self._opened_with = True, None
        yield CloseStream()
        problem = request_error(error, self._paths)
        yield from self._turns.fail(problem, self._received_s)
        yield error_json(problem, self._event_id)
        if problem.status in RETRY_STATUSES:
            yield HangUp(TRY_LATER, str(problem))

    def _commit(self) -> Outputs:
        if self._uncommitted_s < MIN_COMMIT_S:
            raise RequestError(
                f"{max(self._uncommitted_s, 0.0) * 1000:.0f} ms of audio have come since the last commit; "
                f"a commit takes {MIN_COMMIT_S * 1000:.0f} ms",
                code="input_audio_buffer_commit_empty",
            )
        yield from self._turns.commit(self._received_s)

    def _clear(self) -> Outputs:
        if self._opened_with:
            yield from self._turns.clear(self._received_s)
        yield event_json("input_audio_buffer.cleared")

    @property
    def _uncommitted_s(self) -> float:
        """Seconds of audio that belong to no item yet, to the microsecond: sums of floats are a little off."""
        return round(self._received_s - self._turns.committed_s, 6)

    def _configure(self, config: SessionConfig) -> None:
        self._config = self._turns.config = config
        self._stream = config.stream()

    def _session_event(self, kind: str) -> str:
        prefix = "transcription_session" if self._turns.beta else "session"
        shown = shown_config(self._config, self._id, self._expires_at, beta=self._turns.beta)
        return event_json(f"{prefix}.{kind}", session=shown)

    _HANDLERS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
        {
            "session.update": (_update, "session"),
            "transcription_session.update": (_update_beta, "session"),
            "input_audio_buffer.append": (_append, "audio"),
            "input_audio_buffer.commit": (_commit,),
            "input_audio_buffer.clear": (_clear,),
        }
    )
    """What takes the events of clients, and their fields beside the type and the id."""


def _read_json(message: str | bytes) -> dict[str, Any]:
    """Return the object in a message; an error says that there is none."""
    problem = RequestError("a message is not a JSON object; allowed is one event in each", code="invalid_json")
    return object_in(message, problem, parse_constant=_refuse_constant)


def _client_event_id(event: dict[str, Any]) -> str | None:
    """Return the id that the client has given to an event, None if it is not usable."""
    event_id = event.get("event_id")
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS else None


def _decoded_audio(audio: Any) -> bytes:
    """Return the bytes of an append, which is base64 of a length that is bounded."""
    if not isinstance(audio, str):
        raise invalid_value("audio", audio, "a text in base64", "invalid_type")
    if len(audio) > MAX_APPEND_CHARS:
        raise RequestError(
            f"audio has {len(audio)} characters; allowed are {MAX_APPEND_CHARS}",
            code="string_above_max_length",
            param="audio",
        )
    try:
        return b64decode(audio, validate=True)
    except (Base64Error, ValueError):
        raise RequestError("audio is not base64", code="invalid_value", param="audio") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)

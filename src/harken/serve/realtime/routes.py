"""Routes of OpenAI's Realtime transcription: the WebSocket, and short-lived keys for it."""

from __future__ import annotations

from time import time
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from harken.serve.errors import RequestError
from harken.serve.guard import given_keys
from harken.serve.realtime.config import SessionConfig
from harken.serve.realtime.dialects import (
    invalid_value,
    shown_beta_config,
    shown_config,
    updated_config,
)
from harken.serve.realtime.events import new_id, read_json
from harken.serve.realtime.session import RealtimeSession
from harken.serve.realtime.socket_pump import serve_socket
from harken.serve.rest.bounded_body import bounded_body
from harken.serve.service import Service
from harken.serve.tickets import DEFAULT_S, Ticket

SUBPROTOCOL, BETA_SUBPROTOCOL = "realtime", "openai-beta.realtime-v1"
BETA_HEADER, BETA_VERSION = "openai-beta", "realtime=v1"
MAX_BODY_BYTES = 1 << 16


def routes(service: Service) -> list[BaseRoute]:
    """Return the routes of Realtime transcription."""

    async def realtime(socket: WebSocket) -> None:
        offered = socket.scope["subprotocols"]
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        limit_s = service.options.session_limit_s
        session = RealtimeSession(
            _first_config(service, socket.headers),
            service.models.resolve,
            expires_at=int(time() + limit_s) if limit_s else None,
            beta=BETA_SUBPROTOCOL in offered or socket.headers.get(BETA_HEADER) == BETA_VERSION,
            query=socket.query_params,
        )
        await serve_socket(socket, service, session)

    async def client_secrets(request: Request) -> Response:
        _refuse_tickets(service, request.headers)
        body = _checked_body(await _read_body(request), ("expires_after", "session"))
        config = updated_config(SessionConfig(), body.get("session") or {})
        ticket = _make_ticket(service, body.get("expires_after"), "expires_after", config)
        session = shown_config(config, new_id("sess"), None)
        return JSONResponse({"value": ticket.value, "expires_at": ticket.expires_at, "session": session})

    async def transcription_sessions(request: Request) -> Response:
        _refuse_tickets(service, request.headers)
        body = await _read_body(request)
        secret = _checked_body(body.pop("client_secret", None) or {}, ("expires_at",))
        config = updated_config(SessionConfig(), body)
        ticket = _make_ticket(service, secret.get("expires_at"), "client_secret.expires_at", config)
        session = shown_beta_config(config, new_id("sess"), None)
        secret = {"value": ticket.value, "expires_at": ticket.expires_at}
        return JSONResponse(session | {"client_secret": secret})

    return [
        WebSocketRoute("/v1/realtime", realtime),
        Route("/v1/realtime/client_secrets", client_secrets, methods=["POST"]),
        Route("/v1/realtime/transcription_sessions", transcription_sessions, methods=["POST"]),
    ]


def _first_config(service: Service, headers: Headers) -> SessionConfig:
    """Return the configuration that a session begins with: that of its ticket, if it has one."""
    for key in given_keys(headers):
        ticket = service.tickets.find(key)
        if ticket and isinstance(ticket.session, SessionConfig):
            return ticket.session
    return SessionConfig()


def _refuse_tickets(service: Service, headers: Headers) -> None:
    """Refuse to make a ticket for one who has only a ticket, which would never expire then."""
    if any(map(service.tickets.is_valid, given_keys(headers))):
        raise RequestError(
            "a short-lived key cannot make others; the server's own key is needed",
            status=403,
            type="authentication_error",
            code="invalid_api_key",
        )


def _make_ticket(service: Service, expires_after: Any, path: str, config: SessionConfig) -> Ticket:
    service.models.resolve(config.model)
    given = _checked_body({} if expires_after is None else expires_after, ("anchor", "seconds"), f"{path}.")
    if given.get("anchor", "created_at") != "created_at":
        raise invalid_value(f"{path}.anchor", given["anchor"], "'created_at'")
    seconds = given.get("seconds", DEFAULT_S)
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise invalid_value(f"{path}.seconds", seconds, "an integer", "invalid_type")
    return service.tickets.make(seconds, config)


async def _read_body(request: Request) -> dict[str, Any]:
    body = await Request(request.scope, bounded_body(request.scope, request.receive, MAX_BODY_BYTES)).body()
    return read_json(body) if body.strip() else {}


def _checked_body(value: Any, known: tuple[str, ...], path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid_value(path.rstrip(".") or "body", value, "an object", "invalid_type")
    for key in value:
        if key not in known:
            unknown = f"{path}{key[:60]}"
            raise RequestError(f"unknown parameter: {unknown}", code="unknown_parameter", param=unknown)
    return value

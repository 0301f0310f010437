"""The guard before all routes: the Host and Origin of a request, its key or ticket, its number in the log, its errors.

A web page that somebody visits can send requests to servers on their machine. The Host and Origin headers, which
browsers set and scripts cannot, tell such pages apart.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from ipaddress import ip_address
from logging import getLogger
from secrets import token_urlsafe
from time import monotonic, time
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harken.serve.errors import RequestError, busy, json_error, request_error
from harken.serve.options import ServeOptions

log = getLogger("harken.serve")

PUBLIC_PATHS = ("/healthz", "/health", "/readyz", "/", "/captions", "/docs", "/openapi.json")
PUBLIC_FOLDER = "/page/"
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""Prefix of the WebSocket subprotocol in which browsers send a key, as they cannot set headers."""
KEY_SCHEMES = ("bearer", "token")
"""What stands before a key; clients of Deepgram say token, in browsers as the subprotocol before the key."""
GONE = 499
"""Status of requests whose client went away before the response, as other servers log it."""
BODY_HEADERS = {"content-length", "transfer-encoding"}
"""Headers of which a request with a body has one."""
LINGER_S = 30.0
"""Seconds for which the rest of a body is read after its response."""
PREFLIGHT_S = "600"
USUAL_HEADERS = "authorization, content-type, x-api-key"
ANY = "*"
LOCAL_NAMES = ("localhost", "localhost.localdomain")
MAX_TICKETS, RETRY_TICKET_S = 1_000, 10
TICKET_PREFIX = "ek_"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A short-lived key, which a server with the real key gets for the browser of a user."""

    value: str
    expires_at: int  # in seconds since 1970
    session: object = None  # what sessions that are opened with it begin with


class Tickets:
    """The tickets that a server has given out. They open sessions until they expire, and sessions outlast them.

    Parameters
    ----------
    clock : callable
        Returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._tickets: dict[bytes, Ticket] = {}

    def make(self, valid_s: int, session: object = None) -> Ticket:
        """Return a new ticket.

        Raises
        ------
        RequestError
            If there are too many.
        """
        now = self._clock()
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if ticket.expires_at > now}
        if len(self._tickets) >= MAX_TICKETS:
            raise busy(f"{MAX_TICKETS} short-lived keys are valid; allowed are no more", RETRY_TICKET_S)
        ticket = Ticket(TICKET_PREFIX + token_urlsafe(32), int(now) + valid_s, session)
        self._tickets[_digest(ticket.value)] = ticket
        return ticket

    def find(self, key: str) -> Ticket | None:
        """Return the ticket with this key, if it is valid; the time that it takes tells nothing about others."""
        ticket = self._tickets.get(_digest(key))
        return ticket if ticket and ticket.expires_at > self._clock() else None


class Guard:
    """An ASGI application around another one, which sees only requests that are allowed.

    Parameters
    ----------
    app : ASGI application
    options : ServeOptions
    tickets : Tickets
        Short-lived keys, which are as good.
    answer_error : callable
        Returns the response with an error, by the path of the request; by default that of OpenAI's API.
    on_response : callable
        Called with the route, the status and the seconds of every response.
    until_drained : callable
        Makes of a function that receives a body one that raises `RequestError` once the server is to end.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: ServeOptions,
        tickets: Tickets,
        answer_error: Callable[[str, RequestError], Response] = lambda path, problem: json_error(problem),
        on_response: Callable[[str, int, float], None] = lambda route, status, seconds: None,
        until_drained: Callable[[Receive], Receive] = lambda receive: receive,
    ) -> None:
        self._app, self._options, self._tickets, self._on_response = app, options, tickets, on_response
        self._answer_error, self._until_drained = answer_error, until_drained
        self._key_digests = [_digest(key) for key in options.api_key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = self._allowed_origin(headers)
        request = _LoggedRequest(scope, headers, receive, send, origin, self._until_drained)
        try:
            self._check(scope, headers)
            if _is_preflight(scope, headers):
                await Response(status_code=HTTPStatus.NO_CONTENT)(scope, receive, request.send)
            else:
                await self._app(scope, request.receive, request.send)
        except ClientDisconnect:
            return
        except Exception as error:
            if request.has_begun:
                raise
            await self._answer_error(scope["path"], request_error(error))(scope, receive, request.send)
        finally:
            self._on_response(*request.finish())

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise a `RequestError` if the request is not allowed."""
        host = headers.get("host")  # None is HTTP/1.0 of a program, such as a load balancer: browsers send one
        if host is not None and not self._is_allowed_host(host):
            raise RequestError(
                f"Host {host!r} is not a name of this server; the option --allowed-host {_without_port(host)}, or "
                f"HARKEN_ALLOWED_HOST={_without_port(host)} in its environment, allows it",
                status=403,
                code="host",
            )
        path = scope["path"]
        # Browsers name the origin also when a page loads its own scripts, which may then show why the rest is refused.
        is_public = path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)
        if not is_public and "origin" in headers and self._allowed_origin(headers) is None:
            raise RequestError(
                f"Origin {headers['origin']!r} may not use this server; the option --origin {headers['origin']} "
                "allows it",
                status=403,
                code="origin",
            )
        is_public |= _is_preflight(scope, headers)
        if self._key_digests and not is_public and not any(map(self._is_key, given_keys(headers))):
            raise RequestError(
                "a key is needed: Authorization: Bearer KEY",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )

    def _is_key(self, given: str) -> bool:
        """Compare with every key, in a time that tells nothing about them."""
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, key) for key in self._key_digests]
        return any(matches) or self._tickets.find(given) is not None

    def _is_allowed_host(self, host: str) -> bool:
        """Tell if a Host is this server: an address, which no other site's name leads to, or a name of its own."""
        name = _without_port(host)
        names = (*LOCAL_NAMES, self._options.host, *self._options.allowed_host)
        return ANY in self._options.allowed_host or name in map(str.lower, names) or _is_address(name)

    def _allowed_origin(self, headers: Headers) -> str | None:
        """Return the Origin if it may use this server: its own pages, and those of the options."""
        origin = headers.get("origin")
        if origin is None:
            return None
        own = origin.partition("://")[2] == headers.get("host")
        return origin if own or ANY in self._options.origin or origin in self._options.origin else None


class _LoggedRequest:
    """The sending of a response, with the number of its request, and the line about it in the log."""

    def __init__(
        self,
        scope: Scope,
        headers: Headers,
        receive: Receive,
        send: Send,
        origin: str | None,
        until_drained: Callable[[Receive], Receive],
    ) -> None:
        self._scope, self._headers, self._origin = scope, headers, origin
        self._receive, self._send, self._until_drained = receive, send, until_drained
        self._is_unread = scope["type"] == "http" and bool(BODY_HEADERS & {*headers})
        self._id = f"req_{uuid4().hex}"
        self._start_s = monotonic()
        self._status = GONE
        scope.setdefault("state", {})["request_id"] = self._id

    @property
    def has_begun(self) -> bool:
        """True once the response has a status."""
        return self._status != GONE

    async def receive(self) -> Message:
        """Receive a message."""
        message = await self._receive()
        self._is_unread = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a message; a response gets the number of the request, and the headers for scripts of other pages."""
        if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
            self._status = message.get("status", HTTPStatus.SWITCHING_PROTOCOLS)
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._id
            if self._origin:
                headers["access-control-allow-origin"] = self._origin
                headers.add_vary_header("origin")
                wanted = self._headers.get("access-control-request-headers", USUAL_HEADERS)
                # Libraries add their own, and a header does no harm.
                headers["access-control-allow-headers"] = wanted
                headers["access-control-allow-methods"] = "GET, POST, DELETE"
                headers["access-control-expose-headers"] = "x-request-id, retry-after, x-should-retry"
                headers["access-control-max-age"] = PREFLIGHT_S
        if self._is_unread and message["type"] == "http.response.body" and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._read_rest()
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _read_rest(self) -> None:
        """Read for a while what still comes of a body, so that its sender reads the response.

        A connection that is closed on what nobody has read is reset, and the response may be lost.
        """
        receive = self._until_drained(self.receive)
        with suppress(TimeoutError, RequestError):
            async with asyncio.timeout(LINGER_S):
                while self._is_unread:
                    await receive()

    def finish(self) -> tuple[str, int, float]:
        """Write the line of the log; return the route, the status and the seconds."""
        route = getattr(self._scope.get("route"), "path", "")
        seconds = monotonic() - self._start_s
        fields = {"request_id": self._id, "route": route, "status": self._status, "seconds": round(seconds, 3)}
        log.info("request", extra={"fields": {"method": self._scope.get("method", "WEBSOCKET")} | fields})
        return route, self._status, seconds


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    """Tell if a browser only asks whether a script may send a request; it sends no key with that."""
    return scope.get("method") == "OPTIONS" and "access-control-request-method" in headers


def given_keys(headers: Headers) -> Iterable[str]:
    """Yield the keys in a request."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() in KEY_SCHEMES:
        yield key.strip()
    if "x-api-key" in headers:
        yield headers["x-api-key"]
    offered = [*map(str.strip, headers.get("sec-websocket-protocol", "").split(","))]
    for subprotocol, following in zip(offered, [*offered[1:], ""], strict=True):
        if subprotocol.startswith(KEY_SUBPROTOCOL):
            yield subprotocol.removeprefix(KEY_SUBPROTOCOL)
        elif subprotocol in KEY_SCHEMES:
            yield following


def _digest(key: str) -> bytes:
    """Return what keys are compared by, from which nothing can be guessed."""
    return sha256(key.encode(errors="surrogateescape")).digest()


def _without_port(host: str) -> str:
    """Return the name of a Host header, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True

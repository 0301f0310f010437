"""The web application: the routes of all protocols, behind the guard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from harken.serve import page
from harken.serve.errors import RequestError, json_error, plain_error
from harken.serve.guard import Guard, Tickets
from harken.serve.live import deepgram as live_deepgram
from harken.serve.live import realtime, stream
from harken.serve.rest import deepgram, dialects, files
from harken.serve.rest import routes as other_routes
from harken.serve.service import Service

VERSION = "/v1"
OPENAI_PATHS = tuple(f"{VERSION}/{name}" for name in ("audio/", "models", "realtime"))


def make_app(service: Service) -> Starlette:
    """Return the application of a service."""
    tickets = Tickets()
    whisper_cpp = dialects.WhisperCpp(service)
    of_files = (*files.OPENAI, *dialects.DIALECTS, whisper_cpp.inference, deepgram.DIALECT)
    load = Route("/load", whisper_cpp.load, methods=["POST"])
    described = [
        *(Route(dialect.path, files.Files(service, dialect), methods=["POST"]) for dialect in of_files),
        load,
        *other_routes.routes(service),
        *stream.routes(service),
        *realtime.routes(service, tickets),
        *live_deepgram.routes(service),
    ]
    document = page.document(described)
    routes = [*with_other_addresses(described), *page.routes(service, document)]
    sockets = {route.path for route in routes if isinstance(route, WebSocketRoute)}
    refusals = {dialect.path: dialect.refuse for dialect in of_files} | {load.path: plain_error}

    def answer_error(path: str, problem: RequestError) -> Response:
        """Return the response with an error, as the clients of a path know it."""
        return refusals.get(path, json_error)(problem)

    async def answer_http_error(request: Request, error: Exception) -> Response:
        """Answer where no route fits the request."""
        assert isinstance(error, HTTPException)
        status, detail, headers = error.status_code, error.detail, error.headers or {}
        code = "not_found" if status == 404 else None
        if request.method == "GET" and request.url.path in sockets:
            status, code, headers = 426, "upgrade_required", {"upgrade": "websocket"}
            detail = (
                "allowed is a WebSocket; a proxy in between has to pass the headers Upgrade and Connection on"
            )
        message = f"{request.method} {request.url.path}: {detail}"
        response = answer_error(request.url.path, RequestError(message, status=status, code=code))
        response.headers.update(headers)
        return response

    async def leave_out_slash(request: Request) -> Response:
        """Redirect to the address without its last slash; relative, as a proxy may put the server under a folder."""
        name = request.path_params["path"].rpartition("/")[2]
        return RedirectResponse(f"../{name}?{request.url.query}".rstrip("?"))

    async def refuse_socket(socket: WebSocket) -> None:
        """Answer a WebSocket at another address, as 403 would send its user to look for a key."""
        message = f"{socket.url.path}: no WebSocket is served here"
        raise RequestError(message, status=404, code="not_found")

    guard = Middleware(
        Guard,
        options=service.options,
        tickets=tickets,
        answer_error=answer_error,
        on_response=service.metrics.record_response,
        until_drained=service.until_drained,
    )
    app = Starlette(
        routes=[
            *routes,
            Route("/{path:path}/", leave_out_slash, methods=["GET", "POST"]),
            WebSocketRoute("/{path:path}", refuse_socket),
        ],
        middleware=[guard],
        exception_handlers={HTTPException: answer_http_error},
    )
    app.router.redirect_slashes = False  # to an absolute address
    return app


def with_other_addresses(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Yield routes, and those of OpenAI's API without its version, which users leave out of the base address.

    Groq's clients put a folder before it.
    """
    for route in routes:
        yield route
        match route:
            case Route(path=path) if path.startswith(OPENAI_PATHS):
                for other in (path.removeprefix(VERSION), f"/openai{path}"):
                    yield Route(other, route.endpoint, methods=[*(route.methods or ())])
            case WebSocketRoute(path=path) if path.startswith(OPENAI_PATHS):
                yield WebSocketRoute(path.removeprefix(VERSION), route.endpoint)

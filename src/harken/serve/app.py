"""The web application: the routes of all protocols, behind the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from harken.serve import page
from harken.serve.errors import RequestError
from harken.serve.guard import Guard, Tickets
from harken.serve.live import deepgram, realtime, stream
from harken.serve.rest import about, files, render
from harken.serve.service import Service


def make_app(service: Service) -> Starlette:
    """Return the application of a service."""
    tickets = Tickets()
    guard = Middleware(
        Guard, options=service.options, tickets=tickets, on_response=service.metrics.record_response
    )
    return Starlette(
        routes=[
            *about.routes(service),
            *files.routes(service),
            *render.routes(service),
            *stream.routes(service),
            *realtime.routes(service, tickets),
            *deepgram.routes(service),
            *page.routes(service),
        ],
        middleware=[guard],
        exception_handlers={HTTPException: answer_http_error, RequestError: answer_error},
    )


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer with the body that errors have in OpenAI's API."""
    assert isinstance(error, RequestError)
    return JSONResponse(error.body(), error.status, error.headers())


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer where no route fits the request."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    problem = RequestError(
        message, status=error.status_code, code="not_found" if error.status_code == 404 else None
    )
    return JSONResponse(problem.body(), problem.status, problem.headers() | dict(error.headers or {}))

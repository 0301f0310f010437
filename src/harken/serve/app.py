"""The web application: the routes of all protocols, behind the guard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from harken.serve import operations, page, realtime
from harken.serve.errors import RequestError
from harken.serve.guard import Guard
from harken.serve.rest import files, model_list, render
from harken.serve.service import Service
from harken.serve.streams import connection

PROTOCOLS: tuple[Callable[[Service], list[BaseRoute]], ...] = (
    operations.routes,
    files.routes,
    model_list.routes,
    render.routes,
    connection.routes,
    realtime.routes,
    page.routes,
)


def make_app(service: Service) -> Starlette:
    """Return the application of a service."""
    guard = Middleware(
        Guard,
        options=service.options,
        is_ticket=service.tickets.is_valid,
        on_response=service.metrics.record_response,
    )
    return Starlette(
        routes=[*chain.from_iterable(routes(service) for routes in PROTOCOLS)],
        middleware=[guard],
        exception_handlers={
            HTTPException: answer_http_error,
            RequestError: answer_error,
        },
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

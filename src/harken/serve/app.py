"""The web application: the routes of all protocols, behind the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from harken.serve.errors import request_error
from harken.serve.service import Service


def make_app(service: Service) -> Starlette:
    """Return the application of a service."""
    return Starlette(routes=[], exception_handlers={Exception: answer_error})


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer with the error that the body of a response has in OpenAI's API."""
    problem = request_error(error)
    return JSONResponse(problem.body(), problem.status, problem.headers())

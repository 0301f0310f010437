"""Transcripts as files, in the formats of ``harken transcribe``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from harken.errors import OptionError
from harken.formats import FORMATS, from_json, render
from harken.serve.errors import RequestError, request_error
from harken.serve.rest.forms import bounded_body
from harken.serve.service import Service

MAX_TRANSCRIPT_BYTES = 32_000_000
"""Ten hours with their words have about 20 MB."""
MEDIA_TYPES: Mapping[str, str] = {
    "txt": "text/plain",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt",
    "ass": "text/x-ssa",
    "lrc": "text/plain",
    "tsv": "text/tab-separated-values",
    "words.tsv": "text/tab-separated-values",
    "json": "application/json",
    "html": "text/html",
    "rttm": "text/plain",
}


def routes(service: Service) -> list[BaseRoute]:
    """Return the route that renders a transcript in the json format."""
    one_at_a_time = asyncio.Lock()  # a transcript takes many times its bytes

    async def answer(request: Request) -> Response:
        """Make a file of a format of a transcript in harken's JSON."""
        return await _render(request, one_at_a_time)

    return [Route("/v1/harken/render", answer, methods=["POST"])]


async def _render(request: Request, turn: asyncio.Lock) -> Response:
    name = request.query_params.get("format", "")
    if name not in FORMATS:
        raise RequestError(
            f"format={name[:100]!r}: allowed is one of {', '.join(FORMATS)}",
            code="invalid_value",
            param="format",
        )
    bounded = Request(request.scope, bounded_body(request.scope, request.receive, MAX_TRANSCRIPT_BYTES))
    body = await bounded.body()
    try:
        async with turn:
            text = await asyncio.to_thread(_rendered, body, name)
    except OptionError as error:
        raise request_error(error) from error
    headers = {
        "content-disposition": f'attachment; filename="transcript.{name}"',
        "x-content-type-options": "nosniff",
    }
    return Response(text, media_type=MEDIA_TYPES[name], headers=headers)


def _rendered(document: bytes, name: str) -> bytes:
    return "".join(render(from_json(document), name)).encode(errors="replace")

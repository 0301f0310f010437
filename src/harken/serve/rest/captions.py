"""The captions of a live session, as server-sent events for the page `/captions` and other viewers."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from harken.formats import dump_json
from harken.serve.rest.transcripts import HEADERS
from harken.serve.service import Service
from harken.serve.work.captions import Caption, checked_name


def routes(service: Service) -> list[BaseRoute]:
    """Return the route of the captions."""

    async def watch(request: Request) -> Response:
        """Send what a live session says to those who watch it, as server-sent events: the last lines first."""
        captions = service.captions.watch(checked_name(request.path_params["name"]))
        return StreamingResponse(_encoded(captions), headers=HEADERS)

    return [Route("/v1/captions/{name}", watch)]


async def _encoded(captions: AsyncIterator[Caption]) -> AsyncIterator[str]:
    async for caption in captions:
        yield f"data: {dump_json(caption)}\n\n"

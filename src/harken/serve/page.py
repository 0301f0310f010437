"""The page, and that about the API: static files, which come from this server alone and may talk to nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from harken.serve.rest import openapi
from harken.serve.service import Service

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "media-src": "blob:",  # recordings that the visitor has chosen or made
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cache-control": "no-cache",  # ask each time, so that no part is older than the others
}


@dataclass(frozen=True, slots=True)
class _Asset:
    """A file of the page, in memory."""

    content: bytes
    media_type: str
    etag: str


def routes(service: Service, api: Mapping[str, Any]) -> list[BaseRoute]:
    """Return the routes of the description of the API, and of the pages, unless the options leave these out."""
    description = Route("/openapi.json", lambda request: JSONResponse(api))
    if not service.options.page:
        return [description]
    assets = {
        path.name: _asset(path.read_bytes(), path.suffix)
        for path in sorted(FOLDER.iterdir())
        if path.suffix in MEDIA_TYPES
    }

    def route(path: str, asset: _Asset) -> Route:
        async def answer(request: Request) -> Response:
            return _response(request, asset)

        return Route(path, answer)

    return [
        description,
        route("/", assets[INDEX]),
        route("/captions", assets["captions.html"]),
        route("/docs", _asset(openapi.page(api).encode(), ".html")),
        *(route(f"/page/{name}", asset) for name, asset in assets.items()),
    ]


def _asset(content: bytes, suffix: str) -> _Asset:
    return _Asset(content, MEDIA_TYPES[suffix], f'"{sha256(content).hexdigest()[:32]}"')


def _response(request: Request, asset: _Asset) -> Response:
    headers = HEADERS | {"etag": asset.etag}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)

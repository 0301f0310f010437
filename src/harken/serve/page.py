"""The page, and that about the API: static files, which come from this server alone and may talk to nobody else.

The description of the API is made of the routes and their fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from html import escape
from inspect import getdoc
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from harken.serve.rest.files import Dialect, Files
from harken.serve.service import Service
from harken.version import __version__

FOLDER = Path(__file__).parent / "page"
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


def routes(service: Service, api: Mapping[str, Any]) -> list[BaseRoute]:
    """Return the routes of the description of the API, and of the pages, unless the options leave these out."""
    description = Route("/openapi.json", lambda request: JSONResponse(api))
    if not service.options.page:
        return [description]
    contents = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}
    return [
        description,
        _route("/", contents["index.html"]),
        _route("/captions", contents["captions.html"]),
        _route("/docs", _described_page(api).encode()),
        *(_route(f"/page/{name}", content, Path(name).suffix) for name, content in contents.items()),
    ]


def _route(path: str, content: bytes, suffix: str = ".html") -> Route:
    """Return the route of a file, which browsers keep."""
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = HEADERS | {"etag": etag}

    async def answer(request: Request) -> Response:
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=MEDIA_TYPES[suffix], headers=headers)

    return Route(path, answer)


# --- the description of the API: a document in OpenAPI, made of the routes and their fields, and its page ---

Operation = dict[str, Any]
RECORDING = {"type": "string", "format": "binary", "description": "Any recording or video."}
SCHEMES = {"bearer": {"type": "http", "scheme": "bearer"}}
ABOUT = (
    "Speech recognition. OpenAI's routes answer without /v1 too. Live speech comes over WebSockets, which OpenAPI "
    "cannot describe: /v1/realtime, /v1/listen and /v1/stream."
)


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Return the document that describes routes; those of WebSockets and of the page are left out."""
    paths: dict[str, dict[str, Operation]] = {}
    for route in routes:
        if isinstance(route, Route):
            path = route.path.replace(":path}", "}")
            for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
                paths.setdefault(path, {})[method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "harken", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {"securitySchemes": SCHEMES},
        "security": [{"bearer": []}, {}],
    }


def _described_page(described: Mapping[str, Any]) -> str:
    """Return a page in HTML that shows a document."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        '<title>harken: API</title><link rel="icon" href="page/icon.svg" type="image/svg+xml">',
        '<link rel="stylesheet" href="page/docs.css"></head><body>',
        f"<h1>harken {escape(described['info']['version'])}</h1>",
        f"<p>{escape(described['info']['description'])}</p>",
        '<p>As a file: <a href="openapi.json">openapi.json</a></p>',
    ]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parts += _section(f"{method.upper()} {path}", operation)
    return "\n".join([*parts, "</body></html>", ""])


def _operation(route: Route) -> Operation:
    if isinstance(route.endpoint, Files):
        return _of_dialect(route.endpoint.dialect)
    of_path = {"in": "path", "required": True, "schema": {"type": "string"}}
    parameters = [{"name": name} | of_path for name in route.param_convertors]
    summary = (getdoc(route.endpoint) or "").partition("\n")[0]
    return {"summary": summary, "parameters": parameters, "responses": _answers(())}


def _of_dialect(dialect: Dialect) -> Operation:
    fields = {name: {**field.schema, "description": field.meaning} for name, field in dialect.fields.items()}
    required = [name for name, field in dialect.fields.items() if field.required]
    operation: dict[str, Any] = {"summary": dialect.summary}
    if dialect.in_query:
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in fields.items()
        ]
        fields = {}
    if dialect.recording is None:
        content: dict[str, Any] = {"audio/*": {"schema": RECORDING}}
    else:
        properties = {dialect.recording: RECORDING} | fields
        form = {"type": "object", "required": [dialect.recording, *required], "properties": properties}
        content = {"multipart/form-data": {"schema": form}}
    body = {"required": True, "content": content}
    return operation | {"requestBody": body, "responses": _answers(dialect.answers)}


def _answers(types: tuple[str, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {type: {} for type in types}
    return {"200": {"description": "Done.", "content": content}, "4XX": {"description": "Refused."}}


def _section(title: str, operation: Operation) -> Iterator[str]:
    yield f"<h2><code>{escape(title)}</code></h2>"
    yield f"<p>{escape(operation['summary'])}</p>"
    if rows := [*_rows(operation)]:
        yield "<table><tr><th>field</th><th>type</th><th>meaning</th></tr>"
        for row in rows:
            yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        yield "</table>"


def _rows(operation: Operation) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of the parameters and fields."""
    for parameter in operation.get("parameters", ()):
        yield _row(parameter["name"], parameter["schema"])
    for content in operation.get("requestBody", {}).get("content", {}).values():
        for name, schema in content["schema"].get("properties", {"(the body)": content["schema"]}).items():
            yield _row(name, schema)


def _row(name: str, schema: Mapping[str, Any]) -> tuple[str, str, str]:
    meaning = [schema.get("description", "")]
    if "enum" in schema:
        meaning.append(f"One of {', '.join(schema['enum'])}.")
    if "default" in schema:
        meaning.append(f"By default {json.dumps(schema['default'])}.")
    return name, schema.get("type", ""), " ".join(meaning)

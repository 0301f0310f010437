"""Routes that take no recording: models, abilities, health and metrics; captions of live sessions; other formats."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from harken.formats import FORMATS, Layout, dump_json, from_json, render
from harken.serve.errors import RequestError
from harken.serve.rest.forms import bad_field, received_body
from harken.serve.rest.transcripts import HEADERS, MEDIA_TYPES
from harken.serve.service import Service
from harken.serve.work.captions import checked_name
from harken.serve.work.models import LoadedModel
from harken.streaming.config import DELAYS
from harken.text import LANGUAGES
from harken.transcribe.options import TASKS
from harken.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_TRANSCRIPT_BYTES = 32_000_000
"""Ten hours with their words have about 20 MB."""


def routes(service: Service) -> list[BaseRoute]:
    """Return these routes."""
    models = service.models
    one_at_a_time = asyncio.Lock()  # a transcript takes many times its bytes

    def model_json(id: str) -> dict[str, Any]:
        return {"id": id, "object": "model", "created": models.created_s, "owned_by": "harken"}

    async def list_models(request: Request) -> Response:
        """List the models."""
        return JSONResponse({"object": "list", "data": [model_json(id) for id in models.ids]})

    async def retrieve_model(request: Request) -> Response:
        """Find a model by its name or an alias."""
        name = request.path_params["id"]
        try:
            models.resolve(name)
        except RequestError as error:
            error.status = HTTPStatus.NOT_FOUND  # here it is the address that leads nowhere
            raise
        return JSONResponse(model_json(name))

    async def info(request: Request) -> Response:
        """Tell models, languages, formats and limits."""
        loaded = {model.id: model for model in models.loaded}
        options = service.options
        body = {
            "version": __version__,
            "models": [_abilities(id, loaded.get(id)) for id in models.ids],
            "delays": DELAYS,
            "formats": [*FORMATS],
            "limits": {
                "max_upload_mb": options.max_upload_mb,
                "max_audio_s": options.max_audio_s,
                "session_limit_s": options.session_limit_s,
            },
        }
        return JSONResponse(body)

    def status() -> int:
        return HTTPStatus.OK if service.ready else HTTPStatus.SERVICE_UNAVAILABLE

    async def health(request: Request) -> Response:
        """Answer as long as the process lives."""
        return PlainTextResponse("ok\n")

    async def ready_to_work(request: Request) -> Response:
        """Tell if a model has been loaded: whisper.cpp's API."""
        return JSONResponse({"status": "ok"} if service.ready else {"status": "loading model"}, status())

    async def ready(request: Request) -> Response:
        """Tell if a model has been loaded, and what is in progress."""
        state = "draining" if service.draining.is_set() else "ready" if service.ready else "loading"
        body = {
            "status": state,
            "models": [model.id for model in service.models.loaded],
            "streams": service.admission.n_streams,
            "files": service.admission.n_files,
            "queued_s": round(service.admission.queued_s, 3),
        }
        return JSONResponse(body, status())

    async def version(request: Request) -> Response:
        """Tell the name and the version: Bazarr's and OVOS' test of the connection."""
        return JSONResponse({"status": "ok", "version": f"harken {__version__}", "plugin": "harken"})

    async def metrics(request: Request) -> Response:
        """Tell the metrics, for Prometheus."""
        return Response(service.metrics.text(), media_type=METRICS_TYPE)

    async def render_transcript(request: Request) -> Response:
        """Make a file of a format of a transcript in harken's JSON."""
        name = request.query_params.get("format", "")
        if name not in FORMATS:
            raise bad_field("format", name, f"one of {', '.join(FORMATS)}")
        body = await received_body(request, MAX_TRANSCRIPT_BYTES)
        async with one_at_a_time:
            layout = Layout(subtitle_style=request.query_params.get("subtitle_style"))
            text = await asyncio.to_thread(lambda: "".join(render(from_json(body), name, layout)).encode())
        headers = {
            "content-disposition": f'attachment; filename="transcript.{name}"',
            "x-content-type-options": "nosniff",
        }
        return Response(text, media_type=MEDIA_TYPES[name], headers=headers)

    async def watch_captions(request: Request) -> Response:
        """Send what a live session says to those who watch it, as server-sent events: the last lines first."""
        captions = service.captions.watch(checked_name(request.path_params["name"]))
        events = (f"data: {dump_json(caption)}\n\n" async for caption in captions)
        return StreamingResponse(events, headers=HEADERS)

    return [
        Route("/v1/models", list_models),
        Route("/v1/models/{id:path}", retrieve_model),
        Route("/v1/harken/info", info),
        Route("/healthz", health),
        Route("/health", ready_to_work),
        Route("/readyz", ready),
        Route("/status", version),
        Route("/metrics", metrics),
        Route("/v1/harken/render", render_transcript, methods=["POST"]),
        Route("/v1/captions/{name}", watch_captions),
    ]


def _abilities(id: str, model: LoadedModel | None) -> dict[str, Any]:
    """Return what a model can do; null stands for what is not known before it is loaded."""
    if model is None:
        return {"id": id, "loaded": False, "multilingual": None, "languages": None, "tasks": None}
    multilingual = model.recognizer.tokenizer.multilingual
    return {
        "id": id,
        "loaded": True,
        "multilingual": multilingual,
        "languages": [{"code": code, "name": LANGUAGES[code]} for code in model.languages],
        "tasks": TASKS if multilingual else TASKS[:1],
    }

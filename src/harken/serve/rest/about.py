"""Routes about the server: its models, its abilities, its health, its metrics."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from harken.formats import FORMATS
from harken.serve.errors import RequestError
from harken.serve.service import Service
from harken.serve.work.models import LoadedModel
from harken.streaming.config import DELAYS
from harken.text import LANGUAGES
from harken.transcribe.options import TASKS
from harken.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def routes(service: Service) -> list[BaseRoute]:
    """Return the routes of the models, of what the server can do, and of how it is doing."""
    models = service.models

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

    return [
        Route("/v1/models", list_models),
        Route("/v1/models/{id:path}", retrieve_model),
        Route("/v1/harken/info", info),
        Route("/healthz", health),
        Route("/health", ready_to_work),
        Route("/readyz", ready),
        Route("/status", version),
        Route("/metrics", metrics),
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

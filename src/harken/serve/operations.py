"""Routes for those who run the server: is it alive, is it ready, how is it doing."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from harken.serve.service import Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def routes(service: Service) -> list[BaseRoute]:
    """Return the routes of health, readiness and metrics."""

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        state = "draining" if service.draining.is_set() else "ready" if service.ready else "loading"
        body = {
            "status": state,
            "models": [model.id for model in service.models.loaded],
            "streams": service.admission.n_streams,
            "files": service.admission.n_files,
            "queued_s": round(service.admission.queued_s, 3),
        }
        return JSONResponse(body, 200 if service.ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type=METRICS_TYPE)

    return [
        Route("/healthz", health),
        Route("/health", health),
        Route("/readyz", ready),
        Route("/metrics", metrics),
    ]

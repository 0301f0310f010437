"""faster-whisper behind OpenAI's route for files, as small as can be: what `serving` compares with.

Requests run in threads, as in servers that are built on it; segments are sent as they are decoded.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator

import uvicorn
from faster_whisper import WhisperModel
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route


def make_app(model: WhisperModel) -> Starlette:
    """Return the application: one route."""

    def texts(audio: bytes, language: str | None) -> Iterator[str]:
        with tempfile.NamedTemporaryFile() as file:
            file.write(audio)
            file.flush()
            segments, _ = model.transcribe(file.name, language=language, beam_size=1)
            yield from (segment.text for segment in segments)

    async def transcribe(request: Request) -> StreamingResponse:
        async with request.form() as form:
            audio, language = await form["file"].read(), form.get("language")  # type: ignore[union-attr]

        async def events() -> Iterator[str]:  # type: ignore[misc]
            whole = ""
            async for text in iterate_in_threadpool(texts(audio, language)):  # type: ignore[arg-type]
                whole += text
                yield f"data: {json.dumps({'type': 'transcript.text.delta', 'delta': text})}\n\n"
            yield f"data: {json.dumps({'type': 'transcript.text.done', 'text': whole})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/audio/transcriptions", transcribe, methods=["POST"])])


class Announcing(uvicorn.Server):
    """uvicorn that says on standard error where it listens."""

    async def startup(self, sockets: object = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        host, port = self.servers[0].sockets[0].getsockname()
        print(f"serving at http://{host}:{port}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--model", default="tiny.en")
    args = options.parse_args()
    whisper = WhisperModel(args.model, device="cpu", compute_type="int8", cpu_threads=args.threads)
    Announcing(uvicorn.Config(make_app(whisper), port=args.port, log_config=None)).run()

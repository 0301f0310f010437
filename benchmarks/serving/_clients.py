"""Clients of the servers: files sent to OpenAI's route, and live streams paced in real time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from recordings import SAMPLE_RATE

if TYPE_CHECKING:
    import httpx

    from harken.contract import Floats

ROUTE = "/v1/audio/transcriptions"
BLOCK_S = 0.1
"""Audio in a message of a live client."""


@dataclass(frozen=True)
class FileReply:
    """The transcript of a file, the seconds until its first words came, and until all had."""

    text: str
    first_s: float
    total_s: float


async def transcribe(client: httpx.AsyncClient, path: Path) -> FileReply:
    """Send a file, and read the words as they come."""
    start_s, first_s = perf_counter(), None
    form = {"model": "whisper-1", "language": "en", "stream": "true"}
    with path.open("rb") as file:
        async with client.stream("POST", ROUTE, data=form, files={"file": file}) as response:
            response.raise_for_status()
            text = ""
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if event["type"] == "transcript.text.delta" and first_s is None:
                    first_s = perf_counter() - start_s
                text = event.get("text", text)
    total_s = perf_counter() - start_s
    return FileReply(text, total_s if first_s is None else first_s, total_s)


@dataclass(frozen=True)
class LiveMessage:
    """A message of the server, and when it came, in seconds since the stream began."""

    fields: dict[str, Any]
    came_s: float


async def listen(url: str, samples: Floats, hello: dict[str, Any], *, paced: bool = True) -> list[LiveMessage]:
    """Send a stream as it would be spoken, and return what came back.

    Parameters
    ----------
    url : str
        Address of the server, for WebSockets.
    samples : ndarray, float32
    hello : dict
        Further fields of the first message.
    paced : bool
        False sends as fast as the server takes it.
    """
    import numpy as np
    from websockets.asyncio.client import connect

    pcm = np.rint(samples * 32768).clip(-32768, 32767).astype("<i2")
    block = round(BLOCK_S * SAMPLE_RATE)
    audio = {"format": "s16le", "rate": SAMPLE_RATE, "channels": 1}
    messages: list[LiveMessage] = []
    async with connect(f"{url}/v1/stream", compression=None, max_size=None, ping_interval=None) as socket:
        await socket.send(json.dumps({"type": "hello", "audio": audio} | hello))
        ready = json.loads(await socket.recv())
        assert ready["type"] == "ready", ready
        start_s = perf_counter()

        async def send() -> None:
            for first in range(0, len(pcm), block):
                spoken_s = min(first + block, len(pcm)) / SAMPLE_RATE
                if paced and (early_s := start_s + spoken_s - perf_counter()) > 0:
                    await asyncio.sleep(early_s)
                await socket.send(pcm[first : first + block].tobytes())
            await socket.send(json.dumps({"type": "end"}))

        sending = asyncio.create_task(send())
        async for message in socket:
            messages.append(LiveMessage(json.loads(message), perf_counter() - start_s))
        await sending
    return messages


def percentiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return the 50th, 95th and 99th percentile of some seconds as columns of a result."""
    import numpy as np

    quantiles = np.percentile(values, [50, 95, 99]) if values else [None] * 3
    return {
        f"{name}_{percent}_s": None if value is None else round(float(value), 3)
        for percent, value in zip((50, 95, 99), quantiles, strict=True)
    }

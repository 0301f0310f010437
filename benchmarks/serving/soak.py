"""An hour of live streams and of files through one server: its memory and its threads after each part of it.

Audio is sent as fast as the server takes it, so that hours pass in minutes.

    python benchmarks/serving soak --hours 1
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from itertools import cycle
from pathlib import Path

import results
from arguments import limit_threads, parser, positive, require
from recordings import read_set, write_joined
from serving._clients import listen, transcribe
from serving._processes import HARKEN, Server, running

PART_S = 180


def main() -> None:
    args = arguments()
    require("harken", "httpx", "websockets", "starlette")
    limit_threads(args.threads)
    result = results.begin(
        args.save or "serving-soak", {"model": args.model, "threads": args.threads}, ("uvicorn",)
    )
    with tempfile.TemporaryDirectory() as folder, running(HARKEN, args.model, args.threads) as server:
        path = Path(folder) / "part.wav"
        write_joined(cycle(entry.path for entry in read_set(args.audio, args.set, language="en")), path, PART_S)
        parts = round(args.hours * 3600 / PART_S)
        every = max(1, parts // args.rows)
        for part in range(parts + 1):
            if part % every == 0:
                result.add(audio_minutes_of_each=part * PART_S // 60, resident_mb=round(server.resident_mb(), 1),
                           **counts(server))  # fmt: skip
            if part < parts:
                asyncio.run(both(server, path))
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument(
        "--hours", type=float, default=1.0, metavar="H", help="of live audio, and of files (1)"
    )
    options.add_argument("--rows", type=positive, default=10, metavar="N", help="(10)")
    options.add_argument("--set", default="librispeech-train-clean", metavar="NAME", help="recordings to join")
    return options.parse_args()


async def both(server: Server, path: Path) -> None:
    """Send a recording as a file and as a live stream at the same time."""
    import httpx

    from harken.audio import load_audio

    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        live = listen(server.socket_url, load_audio(path), {"finals": "exact"}, paced=False)
        await asyncio.gather(transcribe(client, path), live)


def counts(server: Server) -> dict[str, int]:
    """Return the threads and the open files of the server."""
    process = Path(f"/proc/{server.process.pid}")
    return {
        name: len([*(process / folder).iterdir()]) for name, folder in (("threads", "task"), ("files", "fd"))
    }

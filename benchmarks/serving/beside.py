"""A file of three seconds that comes while one of half an hour is transcribed, and alone.

python benchmarks/serving beside
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
from serving._clients import percentiles, transcribe
from serving._processes import PEER, SERVERS, Server, running

SHORT_S = 3


def main() -> None:
    args = arguments()
    require("harken", "httpx", "starlette", *["faster_whisper"] * (PEER in args.servers))
    limit_threads(args.threads)
    settings = {"model": args.model, "threads": args.threads, "minutes of the long file": args.minutes}
    result = results.begin(
        args.save or "serving-beside", settings, ("uvicorn", "faster-whisper", "ctranslate2")
    )
    with tempfile.TemporaryDirectory() as folder:
        recordings = [entry.path for entry in read_set(args.audio, args.set, language="en")]
        long, short = Path(folder) / "long.wav", Path(folder) / "short.wav"
        write_joined(cycle(recordings), long, 60 * args.minutes)
        write_joined(recordings, short, SHORT_S)
        for name in args.servers:
            with running(name, args.peer_model if name == PEER else args.model, args.threads) as server:
                for beside in (False, True):
                    seconds = asyncio.run(short_seconds(server, short, long if beside else None, args.repeat))
                    result.add(server=name, long_file=beside, **percentiles("short_file", seconds))
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--peer-model", default="tiny.en", metavar="M", help="the model for faster-whisper")
    options.add_argument("--servers", nargs="+", default=[*SERVERS], choices=SERVERS)
    options.add_argument("--minutes", type=positive, default=30, metavar="N", help="of the long file (30)")
    options.add_argument("--repeat", type=positive, default=10, metavar="N", help="short files, in turn (10)")
    options.add_argument("--set", default="librispeech-train-clean", metavar="NAME", help="recordings to join")
    return options.parse_args()


async def short_seconds(server: Server, short: Path, long: Path | None, repeat: int) -> list[float]:
    """Return the times of short files, sent one after the other, while the long one is in progress if there is one."""
    import httpx

    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        await transcribe(client, short)  # loads and warms up
        background = asyncio.create_task(transcribe(client, long)) if long else None
        await asyncio.sleep(1.0 if long else 0.0)
        seconds = []
        for _ in range(repeat):
            assert not (background and background.done()), "the long file has ended before the short ones"
            seconds.append((await transcribe(client, short)).total_s)
        if background:
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
    return seconds

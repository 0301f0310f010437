"""Files sent by several clients at once: throughput, and the time until the first words and the last.

The throughput of ``harken transcribe`` for the same files, in one process, stands beside it; so does faster-whisper
behind the same route.

    python benchmarks/serving files --concurrency 1 2 4 8
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import results
from arguments import COMMAND, limit_threads, parser, positive, require
from recordings import read_set, write_joined
from serving._clients import FileReply, percentiles, transcribe
from serving._processes import PEER, SERVERS, Server, running

CLIENT_TIMEOUT_S = 600


def main() -> None:
    args = arguments()
    require("harken", "httpx", "starlette", *["faster_whisper"] * (PEER in args.servers))
    limit_threads(args.threads)
    settings = {
        "model": args.model, "threads": args.threads, "files": args.files, "seconds a file": args.seconds,
    }  # fmt: skip
    result = results.begin(args.save or "serving-files", settings, ("uvicorn", "faster-whisper", "ctranslate2"))
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(args, Path(folder))
        audio_s = args.files * args.seconds
        for _ in range(args.repeat):
            result.add(server="harken transcribe", clients=1, **row(audio_s, command_seconds(args, paths), []))
            for name in args.servers:
                model = args.peer_model if name == PEER else args.model
                with running(name, model, args.threads) as server:
                    asyncio.run(send_all(server, paths[:2], 1))  # loads and warms up
                    for clients in args.concurrency:
                        start_s = perf_counter()
                        replies = asyncio.run(send_all(server, paths, clients))
                        result.add(
                            server=name, clients=clients, **row(audio_s, perf_counter() - start_s, replies)
                        )
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--peer-model", default="tiny.en", metavar="M", help="the model for faster-whisper")
    options.add_argument("--concurrency", nargs="+", type=positive, default=[1, 2, 4, 8], metavar="N")
    options.add_argument("--servers", nargs="+", default=[*SERVERS], choices=SERVERS)
    options.add_argument("--files", type=positive, default=16, metavar="N", help="(16)")
    options.add_argument("--seconds", type=positive, default=60, metavar="N", help="length of each file (60)")
    options.add_argument("--repeat", type=positive, default=1, metavar="N", help="(1)")
    options.add_argument("--set", default="librispeech-train-clean", metavar="NAME", help="recordings to join")
    return options.parse_args()


def write_files(args: argparse.Namespace, folder: Path) -> list[Path]:
    """Write the files: joined recordings of a set."""
    recordings = cycle(entry.path for entry in read_set(args.audio, args.set, language="en"))
    paths = [folder / f"{i}.wav" for i in range(args.files)]
    for path in paths:
        write_joined(recordings, path, args.seconds)
    return paths


def command_seconds(args: argparse.Namespace, paths: Sequence[Path]) -> float:
    """Return the time of the command line for all files."""
    command = [*COMMAND, "transcribe", *map(str, paths), "--model", args.model, "--threads", str(args.threads)]
    start_s = perf_counter()
    subprocess.run([*command, "--language", "en", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start_s


async def send_all(server: Server, paths: Sequence[Path], clients: int) -> list[FileReply]:
    """Send files by some clients, each of which takes the next file when it has the words of the last."""
    import httpx

    waiting = iter(paths)
    async with httpx.AsyncClient(base_url=server.url, timeout=CLIENT_TIMEOUT_S) as client:

        async def work() -> list[FileReply]:
            return [await transcribe(client, path) for path in waiting]

        return [
            reply for replies in await asyncio.gather(*(work() for _ in range(clients))) for reply in replies
        ]


def row(audio_s: float, seconds: float, replies: Sequence[FileReply]) -> dict[str, Any]:
    """Return a row of the result."""
    return {
        "times_real_time": round(audio_s / seconds, 1),
        **percentiles("first", [reply.first_s for reply in replies]),
        **percentiles("file", [reply.total_s for reply in replies]),
    }

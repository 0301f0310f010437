"""The server: live streams, and files.

``live`` paces clients in real time: each sends other speech over a WebSocket of its own. The latency of a word is the
time from its end in the audio, as an offline alignment gives it, until the client has it: shown, tentative or not, and
committed. ``files`` compares with `harken transcribe` and with faster-whisper behind the same route.

    python benchmarks/serving.py live --count 1 2 4 8 12 --delay minimal low --save serving-live
    python benchmarks/serving.py files --concurrency 1 2 4 8 --save serving-files
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from engines import model_directory
from program import COMMAND, Args, Program, Row, add, main, percentiles, require, stop
from recordings import SAMPLE_RATE, SPEECH, cut_streams, read_set, to_pcm, write_joined

if TYPE_CHECKING:
    import httpx

    from harken.contract import Floats

ADDRESS = re.compile(r"http://([\d.]+):(\d+)")
HARKEN, PEER = "harken", "faster-whisper"
PEER_PROGRAM = Path(__file__).with_name("serving_peer.py")
ROUTE = "/v1/audio/transcriptions"
END_S, CLIENT_TIMEOUT_S = 60, 600
BLOCK_S = 0.1
"""Audio in a message of a live client."""
START_GAP_S = 0.3
"""Time between the starts of two clients: real ones do not begin in step."""


@dataclass(frozen=True)
class Server:
    """A server that runs, at an address."""

    url: str
    process: subprocess.Popen[str]

    def cpu_s(self) -> float:
        """Return the time of the processors that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(name: str, args: Args, *options: str) -> Iterator[Server]:
    """Run a server while the block runs."""
    if name == PEER:
        require("faster_whisper")
        program, model = [sys.executable, str(PEER_PROGRAM)], model_directory(args.model)
    else:
        program, model = [*COMMAND, "serve", *options], args.model
    command = [*program, "--port", "0", "--threads", str(args.threads), "--model", model]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := ADDRESS.search(line):
                break
        else:
            stop(f"{name} did not start: {''.join(lines[-3:])}")
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield Server(f"http://{found[1]}:{found[2]}", process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(END_S)
    drain.wait(END_S)


async def send_file(client: httpx.AsyncClient, path: Path) -> tuple[float, float]:
    """Send a file; return the seconds until its first words came, and until all had."""
    start_s, first_s = perf_counter(), None
    form = {"model": "whisper-1", "language": "en", "stream": "true"}
    with path.open("rb") as file:
        async with client.stream("POST", ROUTE, data=form, files={"file": file}) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if first_s is None and line.startswith("data: ") and ".delta" in line:
                    first_s = perf_counter() - start_s
    total_s = perf_counter() - start_s
    return total_s if first_s is None else first_s, total_s


@dataclass(frozen=True)
class LiveMessage:
    """A message of the server, and when it came, in seconds since the stream began."""

    fields: dict[str, Any]
    came_s: float


async def send_stream(server: Server, samples: Floats, hello: dict[str, Any]) -> list[LiveMessage]:
    """Send a stream as it would be spoken, and return what came back."""
    from websockets.asyncio.client import connect

    pcm = to_pcm(samples)
    block = round(BLOCK_S * SAMPLE_RATE)
    audio = {"format": "s16le", "rate": SAMPLE_RATE, "channels": 1}
    messages: list[LiveMessage] = []
    url = f"{server.url.replace('http', 'ws', 1)}/v1/stream"
    async with connect(url, compression=None, max_size=None, ping_interval=None) as socket:
        await socket.send(json.dumps({"type": "hello", "audio": audio} | hello))
        ready = json.loads(await socket.recv())
        assert ready["type"] == "ready", ready
        start_s = perf_counter()

        async def send() -> None:
            for first in range(0, len(pcm), block):
                spoken_s = min(first + block, len(pcm)) / SAMPLE_RATE
                if (early_s := start_s + spoken_s - perf_counter()) > 0:
                    await asyncio.sleep(early_s)
                await socket.send(pcm[first : first + block].tobytes())
            await socket.send(json.dumps({"type": "end"}))

        sending = asyncio.create_task(send())
        async for message in socket:
            messages.append(LiveMessage(json.loads(message), perf_counter() - start_s))
        await sending
    return messages


def live_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "--count", (1, 2, 4, 8), "numbers of streams")
    add(parser, "--delay", ("minimal", "low"), "delays")
    add(parser, "--finals", "streamed", "kind of finals", choices=("exact", "streamed"))
    add(parser, "--seconds", 40, "length of each stream")


def live(args: Args) -> Iterator[Row]:
    """Yield a row for each delay and number of streams."""
    import harken

    streams = cut_streams(args.audio, args.seconds, max(args.count))
    transcripts = harken.load(args.model, threads=args.threads).transcribe_many(streams, word_timestamps=True)
    words = [[word for segment in transcript for word in segment.words] for transcript in transcripts]
    with running(HARKEN, args, "--max-load", "100") as server:
        asyncio.run(measure_live(server, streams[:1], words[:1], args, args.delay[0]))  # loads and warms up
        for delay in args.delay:
            for count in args.count:
                row = asyncio.run(measure_live(server, streams[:count], words[:count], args, delay))
                yield {"delay": delay, "streams": count} | row


async def measure_live(
    server: Server, streams: Sequence[Floats], words: Sequence[Any], args: Args, delay: str
) -> Row:
    """Run clients at the same time, and return their latencies together."""
    hello = {"model": args.model, "delay": delay, "finals": args.finals, "best_effort": True}

    async def client(index: int, samples: Floats) -> list[LiveMessage]:
        await asyncio.sleep(index * START_GAP_S)
        return await send_stream(server, samples, hello)

    cpu_s = server.cpu_s()
    replies = await asyncio.gather(*(client(i, samples) for i, samples in enumerate(streams)))
    cpu_s = server.cpu_s() - cpu_s
    found = [one for reply, own in zip(replies, words, strict=True) for one in latencies(reply, own)]
    events = [message for reply in replies for message in reply if "event" in message.fields]
    levels = [each.fields["level"] for each in events if each.fields["event"] == "load_changed"]
    return {
        **percentiles("shown", [each.interim_latency.computation_aware_s for each in found]),
        **percentiles("committed", [each.commit_latency.computation_aware_s for each in found]),
        **percentiles("lag", [message.came_s - message.fields["emitted_s"] for message in events]),
        "cpu_s_a_second": round(cpu_s / sum(len(samples) / SAMPLE_RATE for samples in streams), 3),
        "load_level": max(levels, default=0),
        "words": len(found),
    }


def latencies(messages: Sequence[LiveMessage], spoken: Sequence[Any]) -> Sequence[Any]:
    """Return the latency of each spoken word."""
    from harken.evaluation.latency import Display, measure_latencies, unit_splitter
    from harken.evaluation.simulation import EmissionTime

    split_units = unit_splitter("en")
    display = Display(split_units)
    for message in messages:
        if event := shown_event(message.fields):
            time = EmissionTime(
                computation_unaware_s=message.fields["emitted_s"], computation_aware_s=message.came_s
            )
            display.update(event, time)
    return measure_latencies(display.words(), spoken, split_units).words


def shown_event(fields: dict[str, Any]) -> Any:
    """Return the event that a message tells of, if it changes what is shown."""
    from harken.formats import segment_from_json
    from harken.streaming import FinalSegment, Interim, SpeechEnded

    common: dict[str, Any] = {"audio_s": fields.get("audio_s"), "emitted_samples": 0, "compute_s": 0.0}
    match fields.get("event"):
        case "interim":
            return Interim(**common, committed=fields["committed"], tentative=fields["tentative"])
        case "final_segment":
            return FinalSegment(**common, segment=segment_from_json(fields["segment"]))
        case "speech_ended":
            return SpeechEnded(**common, reason=fields["reason"])
    return None


def files_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "--servers", (HARKEN, PEER), "servers", choices=(HARKEN, PEER))
    add(parser, "--concurrency", (1, 2, 4, 8), "numbers of clients")
    add(parser, "--files", 16, "files")
    add(parser, "--seconds", 60, "length of each file")


def files(args: Args) -> Iterator[Row]:
    """Yield a row for the command line, and one for each server and number of clients."""
    with tempfile.TemporaryDirectory() as folder:
        recordings = cycle(entry.path for entry in read_set(args.audio, SPEECH))
        paths = [Path(folder) / f"{i}.wav" for i in range(args.files)]
        for path in paths:
            write_joined(recordings, path, args.seconds)
        audio_s = args.files * args.seconds
        common = ["--model", args.model, "--threads", str(args.threads), "--language", "en", "--quiet"]
        start_s = perf_counter()
        subprocess.run(
            [*COMMAND, "transcribe", *map(str, paths), *common], check=True, stdout=subprocess.DEVNULL
        )
        yield files_row("harken transcribe", 1, audio_s / (perf_counter() - start_s), [])
        for name in args.servers:
            with running(name, args) as server:
                asyncio.run(send_all(server, paths[:2], 1))  # loads and warms up
                for clients in args.concurrency:
                    start_s = perf_counter()
                    replies = asyncio.run(send_all(server, paths, clients))
                    yield files_row(name, clients, audio_s / (perf_counter() - start_s), replies)


async def send_all(server: Server, paths: Sequence[Path], clients: int) -> list[tuple[float, float]]:
    """Send files by some clients, each of which takes the next file when it has the words of the last."""
    import httpx

    waiting = iter(paths)
    async with httpx.AsyncClient(base_url=server.url, timeout=CLIENT_TIMEOUT_S) as client:

        async def work() -> list[tuple[float, float]]:
            return [await send_file(client, path) for path in waiting]

        replies = await asyncio.gather(*(work() for _ in range(clients)))
        return [reply for own in replies for reply in own]


def files_row(server: str, clients: int, speed: float, replies: Sequence[tuple[float, float]]) -> Row:
    """Return a row of the result."""
    first = percentiles("first", [first_s for first_s, _ in replies])
    whole = percentiles("file", [total_s for _, total_s in replies])
    return {"server": server, "clients": clients, "times_real_time": round(speed, 1), **first, **whole}


if __name__ == "__main__":
    common: dict[str, Any] = {
        "doc": __doc__,
        "model": "tiny.en",
        "needs": ("harken", "httpx", "websockets", "starlette"),
        "packages": ("uvicorn", "websockets", "faster-whisper", "ctranslate2"),
    }
    main(
        Program(name="serving-live", rows=live, options=live_options, settings=("finals", "seconds"), **common),
        Program(
            name="serving-files", rows=files, options=files_options, settings=("files", "seconds"), **common
        ),
    )

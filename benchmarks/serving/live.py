"""Live streams that a server keeps up with: clients paced in real time, as streaming servers are measured.

Each client sends other speech over a WebSocket of its own, in blocks of a tenth of a second. The latency of a word is
the time from its end in the audio, as an offline alignment gives it, until the client has it: as shown, tentative or
not, and as committed. The lag of a message is the time since the audio that it needed had been spoken.

    python benchmarks/serving live --count 1 2 4 8 12 --delay minimal low
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, parser, positive, require
from recordings import SAMPLE_RATE, cut_streams
from serving._clients import LiveMessage, listen, percentiles
from serving._processes import HARKEN, Server, running

if TYPE_CHECKING:
    from harken.contract import Floats
    from harken.evaluation.latency import WordLatency
    from harken.results import Word
    from harken.streaming import Event

START_GAP_S = 0.3
"""Time between the starts of two clients: real ones do not begin in step."""


def main() -> None:
    args = arguments()
    require("harken", "websockets", "starlette")
    limit_threads(args.threads)
    settings = {
        "model": args.model, "threads": args.threads, "finals": args.finals, "seconds a stream": args.seconds,
    }  # fmt: skip
    result = results.begin(args.save or "serving-live", settings, ("uvicorn", "websockets"))
    streams = cut_streams(args.audio, args.set, args.seconds, max(args.count))
    words = align(streams, args)
    with running(HARKEN, args.model, args.threads, ["--max-load", "100"]) as server:
        asyncio.run(measure(server, streams[:1], words[:1], args, args.delay[0]))  # loads and warms up
        for delay in args.delay:
            for count in args.count:
                row = asyncio.run(measure(server, streams[:count], words[:count], args, delay))
                result.add(delay=delay, streams=count, **row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument(
        "--count", nargs="+", type=positive, default=[1, 2, 4, 8], metavar="N", help="(1 2 4 8)"
    )
    options.add_argument("--delay", nargs="+", default=["minimal", "low"], metavar="D", help="(minimal low)")
    options.add_argument("--finals", default="streamed", choices=["exact", "streamed"], help="(streamed)")
    options.add_argument("--set", default="librispeech-train-clean", metavar="NAME", help="recordings to join")
    options.add_argument("--seconds", type=positive, default=40, metavar="N", help="length of each stream (40)")
    return options.parse_args()


def align(streams: Sequence[Floats], args: argparse.Namespace) -> list[list[Word]]:
    """Return the words of each stream with their times, by an offline transcription."""
    import harken

    recognizer = harken.load(args.model, threads=args.threads)
    transcripts = recognizer.transcribe_many(streams, word_timestamps=True)
    return [[word for segment in transcript for word in segment.words] for transcript in transcripts]


async def measure(
    server: Server, streams: Sequence[Floats], words: Sequence[list[Word]], args: argparse.Namespace, delay: str
) -> dict[str, Any]:
    """Run clients at the same time, and return their latencies together."""
    hello = {"model": args.model, "delay": delay, "finals": args.finals, "best_effort": True}

    async def client(index: int, samples: Floats) -> list[LiveMessage]:
        await asyncio.sleep(index * START_GAP_S)
        return await listen(server.socket_url, samples, hello)

    cpu_s = _cpu_seconds(server)
    replies = await asyncio.gather(*(client(i, samples) for i, samples in enumerate(streams)))
    cpu_s = _cpu_seconds(server) - cpu_s
    latencies = [
        latency for reply, spoken in zip(replies, words, strict=True) for latency in _latencies(reply, spoken)
    ]
    events = [message for reply in replies for message in reply if "event" in message.fields]
    return {
        **percentiles("shown", [latency.interim_latency.computation_aware_s for latency in latencies]),
        **percentiles("committed", [latency.commit_latency.computation_aware_s for latency in latencies]),
        **percentiles("lag", [message.came_s - message.fields["emitted_s"] for message in events]),
        "cpu_s_a_second": round(cpu_s / sum(len(samples) / SAMPLE_RATE for samples in streams), 3),
        "load_level": max(
            (m.fields["level"] for m in events if m.fields["event"] == "load_changed"), default=0
        ),
        "words": len(latencies),
    }


def _latencies(messages: Sequence[LiveMessage], spoken: Sequence[Word]) -> tuple[WordLatency, ...]:
    from harken.evaluation.latency import Display, measure_latencies, unit_splitter
    from harken.evaluation.simulation import EmissionTime

    split_units = unit_splitter("en")
    display = Display(split_units)
    for message in messages:
        if event := _event(message.fields):
            time = EmissionTime(
                computation_unaware_s=message.fields["emitted_s"], computation_aware_s=message.came_s
            )
            display.update(event, time)
    return measure_latencies(display.words(), spoken, split_units).words


def _event(fields: dict[str, Any]) -> Event | None:
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


def _cpu_seconds(server: Server) -> float:
    """Return the time of the processors that the server has used."""
    import os
    from pathlib import Path

    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

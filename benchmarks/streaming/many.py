"""Number of live streams that a machine keeps up with: in shared passes of the model, and each by itself.

Streams hold different speech and are fed in blocks at the same time. Work on a block begins when its samples are there
and the work before is done; the lag of a block is the time until its work is done. A machine keeps up where computing
takes less time than the audio lasts.

    python benchmarks/streaming many --count 1 2 4 8
    python benchmarks/streaming many --count 8 --delay medium --finals streamed
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, parser, positive, require
from recordings import SAMPLE_RATE, cut_streams

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.contract import Floats

Feed = Callable[[dict[int, Any]], object]
"""Feeds a block to each stream."""


def main() -> None:
    args = arguments()
    require("harken")
    limit_threads(args.threads)
    import harken

    settings = {
        "model": args.model, "threads": args.threads, "delay": args.delay, "finals": args.finals,
        "seconds a stream": args.seconds,
    }  # fmt: skip
    result = results.begin(args.save or "live-many", settings)
    recognizer = harken.load(args.model, threads=args.threads)
    streams = cut_streams(args.audio, args.set, args.seconds, max(args.count))
    for count in args.count:
        ways = {"together": together, "each by itself": alone} if count > 1 else {"alone": alone}
        for passes, begin in ways.items():
            feed = begin(recognizer, count, args)
            result.add(streams=count, passes=passes, **measure(feed, streams[:count], args.block_ms))
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument(
        "--count", nargs="+", type=positive, default=[1, 2, 4, 8], metavar="N", help="(1 2 4 8)"
    )
    options.add_argument("--delay", default="low", metavar="D", help="name or milliseconds (low)")
    options.add_argument("--finals", default="streamed", choices=["exact", "streamed"], help="(streamed)")
    options.add_argument("--set", default="librispeech-train-clean", metavar="NAME", help="recordings to join")
    options.add_argument("--seconds", type=positive, default=40, metavar="N", help="length of each stream (40)")
    options.add_argument(
        "--block-ms", type=positive, default=100, metavar="N", help="audio fed at a time (100)"
    )
    return options.parse_args()


def together(recognizer: Recognizer, count: int, args: argparse.Namespace) -> Feed:
    """Open streams that share passes of the model."""
    sessions = recognizer.stream_many(count, delay=args.delay, finals=args.finals, clock=None)
    for name in range(count):
        sessions.open(name)
    return lambda blocks: sessions.feed(blocks)


def alone(recognizer: Recognizer, count: int, args: argparse.Namespace) -> Feed:
    """Open streams that share nothing but the model."""
    sessions = [recognizer.stream(delay=args.delay, finals=args.finals, clock=None) for _ in range(count)]
    return lambda blocks: [sessions[name].feed(block) for name, block in blocks.items()]


def measure(feed: Feed, streams: Sequence[Floats], block_ms: int) -> dict[str, Any]:
    """Feed streams as if their audio came in real time; return the lag of the work behind it."""
    import numpy as np

    block = block_ms * SAMPLE_RATE // 1000
    done_s = busy_s = 0.0
    lags_s = []
    for start in range(0, len(streams[0]), block):
        arrival_s = (start + block) / SAMPLE_RATE
        began = perf_counter()
        feed({name: samples[start : start + block] for name, samples in enumerate(streams)})
        seconds = perf_counter() - began
        done_s = max(arrival_s, done_s) + seconds
        busy_s += seconds
        lags_s.append(done_s - arrival_s)
    median_s, high_s, longest_s = np.percentile(lags_s, [50, 95, 100])
    return {
        "real_time_factor": round(busy_s * SAMPLE_RATE / len(streams[0]), 4),
        "lag_median_s": round(float(median_s), 3),
        "lag_95_s": round(float(high_s), 3),
        "lag_longest_s": round(float(longest_s), 3),
        "lag_end_s": round(lags_s[-1], 3),
    }

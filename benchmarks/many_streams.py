"""How many live streams a machine keeps up with: together in shared passes, and each by itself.

Every stream is other speech, begun at another place, fed in blocks as if all were spoken at once. Work begins when its
samples are there and what came before is done; so the lag of a block is what it waits and takes. A machine keeps up
where computing takes less than the sound lasts.

    python benchmarks/many_streams.py --count 1 2 4 8
    python benchmarks/many_streams.py --count 8 --delay medium --finals streamed
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from common import GAP_S, SAMPLE_RATE, limit_threads, machine, parser, positive, require, run, table

if TYPE_CHECKING:
    from harken import Recognizer

Feed = Callable[[dict[int, Any]], None]
"""Feed a block to each stream."""
COLUMNS = (
    "streams", "passes", "computing, s a second of all", "lag, s: median", "95 %", "longest", "words", "keeps up",
)  # fmt: skip


def main() -> None:
    args = arguments()
    require("harken")
    limit_threads(args.threads)
    import harken

    print(machine())
    recognizer = harken.load(args.model, threads=args.threads)
    streams = speech(args, max(args.count))
    rows = []
    for count in args.count:
        ways = {"together": together, "each by itself": alone} if count > 1 else {"alone": alone}
        for way, begin in ways.items():
            feed, words = begin(recognizer, count, args)
            rows.append([f"{count}", way, *measured(feed, words, streams[:count], args.block_ms)])
    print(f"\n### {args.model}, delay {args.delay}, {args.finals} finals, {args.seconds} s each\n")
    print(table(COLUMNS, rows))


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", metavar="M", help="name or path (tiny.en)")
    its.add_argument("--count", nargs="+", type=positive, default=[1, 2, 4, 8], metavar="N", help="(1 2 4 8)")
    its.add_argument("--delay", default="low", metavar="D", help="name or milliseconds (low)")
    its.add_argument("--finals", default="exact", choices=["exact", "streamed"], help="(exact)")
    its.add_argument(
        "--set", default="librispeech-train-clean", metavar="NAME", help="recordings that are joined"
    )
    its.add_argument("--seconds", type=positive, default=40, metavar="N", help="length of each stream (40)")
    its.add_argument("--block-ms", type=positive, default=100, metavar="N", help="sound fed at a time (100)")
    return its.parse_args()


def speech(args: argparse.Namespace, count: int) -> list[Any]:
    """Streams of so many seconds, one behind the other in the recordings of a set."""
    import numpy as np

    from harken.audio import load_audio
    from harken.evaluation import read_manifests

    size, waiting, streams = args.seconds * SAMPLE_RATE, np.empty(0, np.float32), []
    gap = np.zeros(round(GAP_S * SAMPLE_RATE), np.float32)
    for entry in read_manifests([args.audio / args.set]):
        waiting = np.concatenate([waiting, load_audio(entry.path), gap])
        while len(waiting) >= size and len(streams) < count:
            streams.append(waiting[:size])
            waiting = waiting[size:]
    if len(streams) < count:
        raise SystemExit(f"{args.set} holds {len(streams)} streams of {args.seconds} s, not {count}")
    return streams


def together(recognizer: Recognizer, count: int, args: argparse.Namespace) -> tuple[Feed, list[int]]:
    """Streams that share passes of the model."""
    sessions, words = recognizer.stream_many(count, delay=args.delay, finals=args.finals, clock=None), [0]
    for name in range(count):
        sessions.open(name)

    def feed(blocks: dict[int, Any]) -> None:
        words[0] += sum(map(spoken, sessions.feed(blocks).values()))

    return feed, words


def alone(recognizer: Recognizer, count: int, args: argparse.Namespace) -> tuple[Feed, list[int]]:
    """Streams that know nothing of each other."""
    sessions = [recognizer.stream(delay=args.delay, finals=args.finals, clock=None) for _ in range(count)]
    words = [0]

    def feed(blocks: dict[int, Any]) -> None:
        words[0] += sum(spoken(sessions[name].feed(block)) for name, block in blocks.items())

    return feed, words


def spoken(events: Sequence[Any]) -> int:
    from harken.streaming import FinalSegment

    return sum(len(event.segment.text.split()) for event in events if isinstance(event, FinalSegment))


def measured(feed: Feed, words: list[int], streams: Sequence[Any], block_ms: int) -> Iterator[str]:
    """Feed streams as if their sound came in time, and say how far behind it was."""
    import numpy as np

    block = block_ms * SAMPLE_RATE // 1000
    end_s = busy_s = 0.0
    lags_s = []
    for start in range(0, len(streams[0]), block):
        arrival_s = (start + block) / SAMPLE_RATE
        began = perf_counter()
        feed({name: samples[start : start + block] for name, samples in enumerate(streams)})
        took_s = perf_counter() - began
        end_s = max(arrival_s, end_s) + took_s
        busy_s += took_s
        lags_s.append(end_s - arrival_s)
    share = busy_s * SAMPLE_RATE / len(streams[0])
    yield f"{share:.2f}"
    yield from (f"{lag:.2f}" for lag in np.percentile(lags_s, [50, 95, 100]))
    yield f"{words[0]}"
    yield "yes" if share < 1 and lags_s[-1] < 1 else "no"


if __name__ == "__main__":
    run(main)

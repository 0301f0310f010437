"""What hashed attention costs, and what it does to the errors, beside full attention; PyTorch on a CPU.

``cost`` times the attention of one encoder layer for longer and longer windows, of random vectors; times over that of
full attention are medians of turns. ``errors`` transcribes sets whole window by whole window.

    python benchmarks/hashing.py cost --save hashing-cost
    python benchmarks/hashing.py errors --limit 60 --save hashing-errors
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median

from program import Args, Program, Row, add, main
from recordings import difference, error_percent, evaluate, read_set

STATE, HEADS = 512, 8
"""Width and heads of the encoder of base."""
ROUNDS = (0, 1, 3, 7)


def cost_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "--positions", (750, 1500, 3000, 6000, 12_000), "positions of a window; Whisper's has 1500")
    add(parser, "--repeats", 5, "turns")


def cost(args: Args) -> Iterator[Row]:
    """Yield a row for each length of a window."""
    import torch

    from harken.backends.torch import LSHAttention
    from harken.backends.torch.model import attend

    torch.set_num_threads(args.threads)
    ways = {"full": attend} | {f"rounds {n}": LSHAttention(rounds=n) for n in ROUNDS}
    for positions in args.positions:
        vectors = torch.randn(3, 1, positions, STATE, generator=torch.Generator().manual_seed(0))
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.repeats + 1):  # the first warms up
            for name, way in ways.items():
                start = time.perf_counter()
                way(*vectors, HEADS)
                seconds[name].append(time.perf_counter() - start)
        middle = {name: median(own[1:]) for name, own in seconds.items()}
        row = {name: middle[name] / middle["full"] for name in ways if name != "full"}
        yield {"positions": positions, "full_ms": 1000 * middle["full"]} | row


def error_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, nargs="+", default=list(ROUNDS), metavar="N", help="hashes")


def errors(args: Args) -> Iterator[Row]:
    """Yield a row for each set and number of rounds."""
    import harken

    def load(**attention: object) -> harken.Recognizer:
        engine = {"backend": "torch", "device": "cpu", "precision": "fp32", "threads": args.threads}
        return harken.load(args.model, **engine, **attention)  # type: ignore[arg-type]

    ways = {"full": load()} | {str(n): load(attention="lsh", lsh_rounds=n) for n in args.rounds}
    for name in args.set:
        entries = read_set(args.audio, name, args.limit, model=args.model)
        texts: dict[str, list[str]] = {rounds: [] for rounds in ways}
        seconds = dict.fromkeys(ways, 0.0)
        for entry in entries:
            for rounds, recognizer in ways.items():
                start = time.perf_counter()
                texts[rounds].append(recognizer.transcribe(entry.path, language=entry.language).result().text)
                seconds[rounds] += time.perf_counter() - start
        evaluations = {rounds: evaluate(entries, own) for rounds, own in texts.items()}
        for rounds, evaluation in evaluations.items():
            row: Row = {"set": name, "recordings": len(entries), "rounds": rounds}
            row |= {"errors": error_percent(evaluation), "time": seconds[rounds] / seconds["full"]}
            yield row | difference("to full", evaluation, evaluations["full"])


if __name__ == "__main__":
    main(
        Program(
            doc=__doc__, name="hashing-cost", rows=cost, options=cost_options, needs=("harken", "torch"),
            packages=("torch",), settings=("repeats",),
        ),
        Program(
            doc=__doc__, name="hashing-errors", rows=errors, options=error_options, model="tiny.en",
            sets=("librispeech-test-other", "ljspeech", "long-form"), packages=("torch",),
            needs=("harken", "torch", "jiwer", "whisper_normalizer"),
        ),
    )  # fmt: skip

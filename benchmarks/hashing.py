"""What hashed attention costs beside full attention; PyTorch on a CPU.

Times the attention of one encoder layer for longer and longer windows, of random vectors; times over that of full
attention are medians of turns. `harken eval --attention lsh` counts errors.

    python benchmarks/hashing.py --save hashing-cost
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from program import Args, Parser, Row, add, main

STATE, HEADS = 512, 8
"""Width and heads of the encoder of base."""
ROUNDS = (0, 1, 3, 7)


def options(parser: Parser) -> None:
    add(parser, "--positions", (750, 1500, 3000, 6000, 12_000), "positions of a window; Whisper's has 1500")
    add(parser, "--repeats", 5, "turns")


def rows(args: Args) -> Iterator[Row]:
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


if __name__ == "__main__":
    main(rows, options, needs=("harken", "torch"), packages=("torch",), settings=("repeats",))

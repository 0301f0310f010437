"""What it costs to verify: one pass of the decoder over n tokens at once, beside a pass over one.

A draft of k tokens is verified by one pass over k + 1, so these ratios, with the rate at which drafts are accepted, say
what speculative decoding can bring. Widths and precisions take turns, round by round; figures are medians. Windows are
of noise, which changes no cost. The last column tells how far log-probabilities of tokens that are verified together
are from those of single steps.

    python benchmarks/verify.py
    python benchmarks/verify.py --model small --precision int8 fp32 --windows 1 4
    python benchmarks/verify.py --backend torch --precision fp32
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from common import limit_threads, machine, parser, positive, require, run, table

if TYPE_CHECKING:
    from harken.contract import Backend, Features, Floats, Session

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


def main() -> None:
    args = arguments()
    require("harken")
    limit_threads(args.threads)
    print(machine())
    import numpy as np

    import harken

    engines = {
        precision: harken.load(
            args.model, backend=args.backend, device=args.device, precision=precision, threads=args.threads
        ).backend
        for precision in args.precision
    }
    sessions = {}
    for (precision, backend), windows in product(engines.items(), args.windows):
        frames = 2 * min(args.positions or backend.dims.n_audio_ctx, backend.dims.n_audio_ctx)
        mel = np.random.default_rng(0).standard_normal((windows, backend.dims.n_mels, frames), np.float32) / 3
        sessions[precision, windows] = opened(backend, backend.encode(mel), windows, args.past)
    times = measure(list(sessions.values()), args.past, args.rounds)
    rows = [
        [
            *map(str, key),
            f"{1000 * its[0]:.2f}",
            *(f"{width_s / its[0]:.2f}" for width_s in its[1:]),
            f"{largest_difference(sessions[key], args.past):.1g}",
        ]
        for key, its in zip(sessions, times, strict=True)
    ]
    columns = (
        "precision",
        "windows",
        "1 token, ms",
        *(f"{width} tokens" for width in WIDTHS[1:]),
        "difference",
    )
    print(f"\n### {args.model}, {args.backend}, {args.past} tokens before, {args.threads} threads\n")
    print(table(columns, rows))


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", help="name or path of harken's model (tiny.en)")
    its.add_argument("--backend", default="onnx", choices=["onnx", "torch"], help="engine (onnx)")
    its.add_argument("--device", default="auto", help="of the torch engine (auto)")
    its.add_argument("--precision", nargs="+", metavar="P", help="precisions (int8 and fp32; with torch auto)")
    its.add_argument(
        "--windows", type=positive, nargs="+", default=[1], metavar="N", help="windows together (1)"
    )
    its.add_argument("--positions", type=positive, metavar="N", help="positions of a window, 50 a second (all)")
    its.add_argument("--past", type=positive, default=40, metavar="N", help="tokens of each window before (40)")
    its.add_argument("--rounds", type=positive, default=20, metavar="N", help="passes of each width (20)")
    args = its.parse_args()
    args.precision = args.precision or {"onnx": ["int8", "fp32"], "torch": ["auto"]}[args.backend]
    return args


def opened(backend: Backend, features: Features, windows: int, past: int) -> Session:
    """A session that has read some tokens of every window."""
    session = backend.open_session(features, range(windows), backend.dims.n_text_ctx)
    session.extend([tokens(past, seed=window) for window in range(windows)])
    return session


def tokens(n: int, seed: int) -> list[int]:
    """So many ordinary tokens."""
    import numpy as np

    ids: list[int] = np.random.default_rng(seed).integers(0, 50_000, n).tolist()
    return ids


def measure(sessions: Sequence[Session], past: int, rounds: int) -> list[list[float]]:
    """Median seconds of a pass, of each session at each of `WIDTHS`; logits reach the host."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for _, width, (which, session) in product(range(rounds + 1), WIDTHS, enumerate(sessions)):
        drafts = [row[:width] for row in ahead(len(session.lengths))]
        began = perf_counter()
        session.extend(drafts, width).top(1)
        seconds.setdefault((which, width), []).append(perf_counter() - began)
        session.rewind([past] * len(drafts))
    return [[median(seconds[which, width][1:]) for width in WIDTHS] for which in range(len(sessions))]


def ahead(rows: int) -> list[list[int]]:
    """What comes next in every row, as far as the widest pass."""
    return [tokens(WIDTHS[-1], seed=100 + row) for row in range(rows)]


def largest_difference(session: Session, past: int) -> float:
    """Of the best log-probabilities after each token of the widest pass, verified together and one by one."""
    import numpy as np

    rows = ahead(len(session.lengths))

    def best(width: int) -> Floats:
        parts = []
        for at in range(0, WIDTHS[-1], width):
            _, values = session.extend([row[at : at + width] for row in rows], width).top(20)
            parts.append(values.reshape(len(rows), width, -1))
        session.rewind([past] * len(rows))
        return np.concatenate(parts, axis=1)

    return float(np.abs(best(1) - best(WIDTHS[-1])).max())


if __name__ == "__main__":
    run(main)

"""Cost of verification: a pass of the decoder over n tokens at once, as a multiple of a pass over one.

A draft of k tokens is verified by one pass over k + 1, so these ratios, with the rate at which drafts are accepted,
decide what speculative decoding gains. Widths and precisions take turns, round by round; figures are medians. Windows
are noise, which changes no cost. `difference` is the largest difference between log-probabilities of tokens that are
verified together and those of single steps.

With ``--dims`` the PyTorch backend runs random weights of a large model's dimensions, and an assistant that shares its
encoder and has its first decoder layers. Acceptance cannot be measured then: `speedup_N` assumes that each drafted
token is accepted with a probability of N %, independently; a round of k drafted tokens brings
(1 - a^(k + 1)) / (1 - a) tokens (Leviathan et al. 2023, equation 1), and the best k counts. Every step suppresses
tokens as the logit rules do.

    python benchmarks/verify.py --model small --precision int8 fp32 --windows 1 4
    python benchmarks/verify.py --dims large-v3 --draft-layers 2 --windows 1 4 8
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, parser, positive, require, run
from gpu import PROMPT, SIZES, draw_weights, make_dims

if TYPE_CHECKING:
    from harken.contract import Backend, Features, Floats, Logits, Session

WIDTHS = (1, 2, 3, 5, 9, 17)
ACCEPTANCE = (60, 70, 80, 90)
"""Assumed probabilities that a drafted token is accepted, in percent."""
N_SUPPRESSED, N_TIMESTAMPS = 90, 1501


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A model, and its assistant where there is one."""

    precision: str
    backend: Backend
    assistant: Backend | None = None


def main() -> None:
    args = arguments()
    require("harken", *(["torch"] if args.dims or args.backend == "torch" else []))
    limit_threads(args.threads)
    model = args.dims or Path(args.model).name
    settings = {"backend": args.backend, "threads": args.threads, "tokens before": args.past}
    result = results.begin(args.save or "verification", settings, ("torch",) if args.backend == "torch" else ())
    engines = load_random(args) if args.dims else load(args)
    steps, drafts, differences = [], [], []
    cases = [*product(engines, args.windows)]
    for engine, windows in cases:
        features = encode(engine.backend, windows, args.positions)
        session = open_session(engine.backend, features, args.past)
        steps.append(stepper(session, engine.backend, args))
        differences.append(largest_difference(session, args.past))
        if engine.assistant:
            shared = engine.assistant.reuse_encoder_output(features)
            drafter = open_session(engine.assistant, shared, args.past)
            drafts.append(stepper(drafter, engine.assistant, args))
    seconds = measure(steps, WIDTHS, args.rounds)
    drafts_s = [row[0] for row in measure(drafts, (1,), args.rounds)] or [None] * len(cases)
    for (engine, windows), row, draft_s, difference in zip(cases, seconds, drafts_s, differences, strict=True):
        result.add(
            model=model,
            precision=engine.precision,
            windows=windows,
            one_token_ms=round(1000 * row[0], 4),
            **{f"ratio_{n}": round(s / row[0], 4) for n, s in zip(WIDTHS[1:], row[1:], strict=True)},
            difference=difference,
            draft_step_ms=draft_s and round(1000 * draft_s, 4),
            **{f"speedup_{percent}": speedup(row, draft_s, percent / 100) for percent in ACCEPTANCE},
        )
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--backend", default="onnx", choices=["onnx", "torch"], help="(onnx)")
    options.add_argument("--device", default="auto", help="of the PyTorch backend (auto)")
    options.add_argument(
        "--precision", nargs="+", metavar="P", help="precisions (int8 and fp32; with torch auto)"
    )
    options.add_argument("--dims", choices=SIZES, help="random weights of these dimensions, in PyTorch")
    options.add_argument(
        "--draft-layers", type=positive, default=2, metavar="N", help="decoder layers of the assistant (2)"
    )
    options.add_argument(
        "--windows", type=positive, nargs="+", default=[1], metavar="N", help="windows together (1)"
    )
    options.add_argument("--positions", type=positive, metavar="N", help="positions of a window (all)")
    options.add_argument("--past", type=positive, default=40, metavar="N", help="tokens before (40)")
    options.add_argument("--rounds", type=positive, default=20, metavar="N", help="passes of each width (20)")
    args = options.parse_args()
    args.backend = "torch" if args.dims else args.backend
    args.precision = args.precision or {"onnx": ["int8", "fp32"], "torch": ["auto"]}[args.backend]
    return args


def load(args: argparse.Namespace) -> list[Engine]:
    """Load a model in each precision."""
    import harken

    options = {"backend": args.backend, "device": args.device, "threads": args.threads}
    loaded = [harken.load(args.model, precision=precision, **options).backend for precision in args.precision]
    return [Engine(precision=backend.capabilities.precision, backend=backend) for backend in loaded]


def load_random(args: argparse.Namespace) -> list[Engine]:
    """Load a model of random weights in each precision, and an assistant of its first layers."""
    import torch

    from harken.backends.torch import TorchBackend
    from harken.checkpoints.weight_shapes import expected_shapes

    torch.set_num_threads(args.threads)
    dims = make_dims(args.dims)
    small = replace(dims, n_text_layer=args.draft_layers).without_encoder()
    weights = draw_weights(dims)
    small_weights = {name: weights[name] for name in expected_shapes(small)}
    engines = []
    for precision in args.precision:
        options: dict[str, Any] = {"device": args.device, "precision": precision}
        main = TorchBackend(dims, weights, **options)
        assistant = TorchBackend(small, small_weights, **options)
        engines.append(Engine(precision=main.capabilities.precision, backend=main, assistant=assistant))
    return engines


def encode(backend: Backend, windows: int, positions: int | None) -> Features:
    """Encode windows of noise."""
    import numpy as np

    frames = 2 * min(positions or backend.dims.n_audio_ctx, backend.dims.n_audio_ctx)
    rng = np.random.default_rng(0)
    return backend.encode(rng.standard_normal((windows, backend.dims.n_mels, frames), np.float32) / 3)


def open_session(backend: Backend, features: Features, past: int) -> Session:
    """Open a session that has read some tokens of every window."""
    session = backend.open_session(features, range(features.n_windows), backend.dims.n_text_ctx)
    session.extend([tokens(past, seed=window) for window in range(features.n_windows)])
    return session


def tokens(n: int, seed: int) -> list[int]:
    """Return so many ordinary tokens."""
    import numpy as np

    ids: list[int] = np.random.default_rng(seed).integers(0, 50_000, n).tolist()
    return ids


def stepper(session: Session, backend: Backend, args: argparse.Namespace) -> Callable[[int], float]:
    """Return a function that lets a session read tokens and forget them, and returns the seconds of it."""

    def step(width: int) -> float:
        next_tokens = [row[:width] for row in following(len(session.lengths))]
        began = perf_counter()
        logits = session.extend(next_tokens, width)
        if args.dims:
            suppress(logits, backend.dims.n_vocab)
        logits.top(1)
        seconds = perf_counter() - began
        session.rewind([args.past] * len(next_tokens))
        return seconds

    return step


def suppress(logits: Logits, n_vocab: int) -> None:
    """Suppress tokens as the logit rules do; which ones changes no cost."""
    import numpy as np

    begin = n_vocab - N_TIMESTAMPS
    logits.suppress_tokens(np.arange(0, 100 * N_SUPPRESSED, 100))
    logits.suppress_ranges([[(PROMPT[0], begin)]] * len(logits))
    logits.prefer_timestamps(begin)


def following(rows: int) -> list[list[int]]:
    """Return the next tokens of every row, for the widest pass."""
    return [tokens(WIDTHS[-1], seed=100 + row) for row in range(rows)]


def measure(steps: Sequence[Callable[[int], float]], widths: Sequence[int], rounds: int) -> list[list[float]]:
    """Return the median seconds of each step at each width; a first round is not counted."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for _, width, (index, step) in product(range(rounds + 1), widths, enumerate(steps)):
        seconds.setdefault((index, width), []).append(step(width))
    return [[median(seconds[index, width][1:]) for width in widths] for index in range(len(steps))]


def largest_difference(session: Session, past: int) -> float:
    """Return the largest difference of the best log-probabilities, verified together and one by one."""
    import numpy as np

    rows = following(len(session.lengths))

    def best(width: int) -> Floats:
        parts = []
        for at in range(0, WIDTHS[-1], width):
            _, values = session.extend([row[at : at + width] for row in rows], width).top(20)
            parts.append(values.reshape(len(rows), width, -1))
        session.rewind([past] * len(rows))
        return np.concatenate(parts, axis=1)

    return float(np.abs(best(1) - best(WIDTHS[-1])).max())


def speedup(verify_s: Sequence[float], draft_s: float | None, rate: float) -> float | None:
    """Return the speed-up with the best length of drafts, at an assumed rate of acceptance."""
    if draft_s is None:
        return None
    lengths = [(width - 1, seconds) for width, seconds in zip(WIDTHS, verify_s, strict=True)]
    gains = [
        sum(rate**i for i in range(k + 1)) * verify_s[0] / (k * draft_s + seconds) for k, seconds in lengths
    ]
    return round(max(gains), 3)


if __name__ == "__main__":
    run(main)

"""Time of a decoder step: the native decoder beside ONNX Runtime, and beside the time that reading its bytes takes.

A step appends tokens to rows, of which each has a window of its own and tokens before. The two decoders take turns in
one process, in bursts of steps on the same encoder output, which is noise: no value changes the cost. The beginning of
a burst is not counted, while threads of the other decoder may still spin. `LogitRules.apply` and `top`, which follow a
step, are timed by themselves.

The floor is the bytes that a step of the native decoder reads (integers and scales of all layers and of the
vocabulary, keys and values of the cross-attention, KV cache) over the rate at which this machine reads so many bytes
again and again. The rate is measured between the bursts, with as many threads, and the highest counts, as the least
time of a step does.

With ``--dims`` the weights are random, of a published model's dimensions, and no checkpoint is needed.

    python benchmarks/steps.py --model tiny.en base small --save steps
    python benchmarks/steps.py --dims large-v3-turbo --save steps-large
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, note, parser, positive, require, run, stop
from gpu import SIZES, draw_weights, make_dims
from verify import N_SUPPRESSED, N_TIMESTAMPS

if TYPE_CHECKING:
    from harken.contract import Backend, Session
    from harken.decoding.logit_rules import LogitRules
    from harken.types import Dims

MODELS = ("tiny.en", "base", "small")
NATIVE, ONNX = "native", "onnx"
TOKENS, ROWS = (1, 2, 3, 5, 8), (1, 2, 8)
"""Tokens of a step of one row, and rows of a step of one token."""
N_READS = 5
"""Readings of the bytes of a step in each round."""
UNCOUNTED = 0.25
"""Share of a burst that is not counted."""
END_OF_TEXT, BLANK = 50257, 220


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of step.

    Parameters
    ----------
    positions : int
        Positions of each window's encoder output.
    rows : int
    tokens : int
        New tokens of each row.
    """

    positions: int
    rows: int
    tokens: int


@dataclass(slots=True)
class Times:
    """Seconds of the steps of one decoder, and of the rules and the choice after each."""

    steps: list[float] = field(default_factory=list)
    choices: list[float] = field(default_factory=list)


def main() -> None:
    args = arguments()
    require("harken", "openvino", "onnxruntime")
    limit_threads(args.threads)
    from harken.backends.native.library import chosen_instruction_set

    settings = {
        "threads": args.threads,
        "tokens before": args.past,
        "bursts": args.bursts,
        "seconds a burst": args.burst_s,
        "instruction set": chosen_instruction_set(),
    }
    result = results.begin(args.save or "steps", settings)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # maps of files may outlive it
        for name, backends in load(args, Path(scratch)):
            for positions in args.positions:
                if positions > backends[NATIVE].dims.n_audio_ctx:
                    allowed = f"allowed are 1 to {backends[NATIVE].dims.n_audio_ctx} with {name}"
                    stop(f"--positions {positions}: {allowed}")
                for row in measure(name, backends, make_cases(positions, args.tokens, args.rows), args):
                    result.add(**row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument(
        "--model",
        nargs="+",
        action="extend",
        metavar="M",
        help=f"names or paths of models ({' '.join(MODELS)})",
    )
    options.add_argument("--dims", choices=SIZES, help="random weights of these dimensions, and no other model")
    for name, default, what in (
        ("--positions", (1500, 500), "positions of a window"),
        ("--tokens", TOKENS, "tokens of a step of one row"),
        ("--rows", ROWS, "rows of a step of one token"),
    ):
        shown = " ".join(map(str, default))
        options.add_argument(
            name, type=positive, nargs="+", default=[*default], metavar="N", help=f"{what} ({shown})"
        )
    options.add_argument("--past", type=positive, default=40, metavar="N", help="tokens before a step (40)")
    options.add_argument("--bursts", type=positive, default=8, metavar="N", help="bursts of each decoder (8)")
    options.add_argument("--burst-s", type=float, default=0.25, metavar="S", help="seconds of a burst (0.25)")
    args = options.parse_args()
    if args.dims and args.model:
        options.error("--dims takes the place of --model: allowed is one of them")
    args.model = args.model or [*MODELS]
    return args


def make_cases(positions: int, n_tokens: Sequence[int], n_rows: Sequence[int]) -> list[Case]:
    """Return the kinds of steps over windows of one length: several tokens of one row, and one token of several."""
    return [
        *(Case(positions=positions, rows=1, tokens=n) for n in sorted({1, *n_tokens})),
        *(Case(positions=positions, rows=n, tokens=1) for n in sorted(n_rows) if n > 1),
    ]


def load(args: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, dict[str, Backend]]]:
    """Yield each model with its two decoders; encoders are not loaded."""
    if args.dims:
        yield args.dims, load_random(make_dims(args.dims), args.threads, scratch)
        return
    from harken.backend_factory import BackendFactory
    from harken.checkpoints import open_checkpoint, resolve_model

    for model in args.model:
        checkpoint = open_checkpoint(resolve_model(model))
        yield (
            Path(model).name,
            {
                name: BackendFactory(backend=name, precision="int8", threads=args.threads).make_backend(
                    checkpoint, shares_encoder=True
                )
                for name in (NATIVE, ONNX)
            },
        )


def load_random(dims: Dims, threads: int, scratch: Path) -> dict[str, Backend]:
    """Return both decoders with the same random weights."""
    from harken.backends.native import NativeBackend
    from harken.backends.onnx import OnnxBackend

    weights = draw_weights(dims.without_encoder())
    options: dict[str, Any] = {
        "precision": "int8",
        "threads": threads,
        "cache": scratch,
        "shares_encoder": True,
    }
    return {
        NATIVE: NativeBackend(dims, weights, "random", **options),
        ONNX: OnnxBackend(dims, weights, "random", **options),
    }


def measure(
    name: str, backends: dict[str, Backend], cases: Sequence[Case], args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for each case of one model; all are over windows of one length."""
    from roofline import best_of, make_reading, native_step_bytes

    dims = backends[NATIVE].dims
    single: dict[str, float] = {}
    for n_rows in dict.fromkeys(case.rows for case in cases):
        sessions = open_sessions(backends, n_rows, cases[0].positions, args.past)
        read, n_bytes = make_reading(native_step_bytes(dims, n_rows, cases[0].positions, args.past))
        read_s: list[float] = []
        own_cases = [case for case in cases if case.rows == n_rows]
        times = {case: {decoder: Times() for decoder in sessions} for case in own_cases}
        for _ in range(args.bursts):
            read_s.append(best_of(read, N_READS))
            for case in own_cases:
                for decoder, session in sessions.items():
                    burst(session, case, dims, args, times[case][decoder])
        for case in own_cases:
            steps = {decoder: summary(own.steps) for decoder, own in times[case].items()}
            floor = 1000 * min(read_s) * native_step_bytes(dims, n_rows, case.positions, args.past) / n_bytes
            single = single or {decoder: own["least"] for decoder, own in steps.items()}
            yield row(name, case, steps, times[case], single, floor, n_bytes / min(read_s))
        note(f"{name}, {cases[0].positions} positions, {n_rows} rows: measured")


def open_sessions(backends: dict[str, Backend], rows: int, positions: int, past: int) -> dict[str, Session]:
    """Open a session of each decoder on the same noise, with some tokens read in every row."""
    import numpy as np

    from harken.backends.encoding import EncodedWindows

    dims = backends[NATIVE].dims
    noise = np.random.default_rng(0).standard_normal((rows, positions, dims.n_text_state), np.float32)
    sessions = {}
    for name, backend in backends.items():
        features = backend.reuse_encoder_output(EncodedWindows(noise))
        sessions[name] = backend.open_session(features, range(rows), dims.n_text_ctx)
        sessions[name].extend([draw_tokens(dims, past, seed=row) for row in range(rows)])
    return sessions


def burst(session: Session, case: Case, dims: Dims, args: argparse.Namespace, times: Times) -> None:
    """Repeat a step for some time, and note the seconds of each but the first ones."""
    rules, new = make_rules(dims), [draw_tokens(dims, case.tokens, seed=100 + row) for row in range(case.rows)]
    lengths = [args.past] * case.rows
    prefixes = [prefix_before(row, n + 1, rules) for row in new for n in range(case.tokens)]
    began = perf_counter()
    while (started := perf_counter()) < began + args.burst_s or not times.steps:
        logits = session.extend(new, case.tokens)
        extended = perf_counter()
        rules.apply(logits, prefixes)
        logits.top(1)
        chosen = perf_counter()
        session.rewind(lengths)
        if started >= began + UNCOUNTED * args.burst_s:
            times.steps.append(extended - started)
            times.choices.append(chosen - extended)


def draw_tokens(dims: Dims, n: int, seed: int) -> list[int]:
    """Return so many ordinary tokens."""
    import numpy as np

    drawn: list[int] = np.random.default_rng(seed).integers(0, dims.n_vocab - N_TIMESTAMPS, n).tolist()
    return drawn


def make_rules(dims: Dims) -> LogitRules:
    """Return rules as those of a model with timestamps; which tokens are suppressed changes no cost."""
    import numpy as np

    from harken.decoding.logit_rules import LogitRules

    begin, end = dims.n_vocab - N_TIMESTAMPS, min(END_OF_TEXT, dims.n_vocab - N_TIMESTAMPS - 1)
    return LogitRules(
        eot=end,
        timestamp_begin=begin,
        suppressed=np.arange(0, begin, begin // N_SUPPRESSED),
        first_banned=((BLANK, BLANK + 1), (end, end + 1)),
        timestamps=True,
        max_initial_timestamp=begin + 50,
    )


def prefix_before(chosen: Sequence[int], n: int, rules: LogitRules) -> list[int]:
    """Return the tokens before a choice: a timestamp and text."""
    return [rules.timestamp_begin, *chosen[:n]]


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return the least milliseconds, the first quartile and the median."""
    import numpy as np

    least, quarter, middle = (float(np.percentile(seconds, percent)) for percent in (0, 25, 50))
    return {"least": 1000 * least, "quarter": 1000 * quarter, "median": 1000 * middle}


def row(
    name: str,
    case: Case,
    steps: dict[str, dict[str, float]],
    times: dict[str, Times],
    single: dict[str, float],
    floor_ms: float,
    rate: float,
) -> dict[str, Any]:
    """Return the row of one case; `single` are the least milliseconds of one token of one row."""
    native, onnx = steps[NATIVE]["least"], steps[ONNX]["least"]
    return {
        "model": name,
        "positions": case.positions,
        "rows": case.rows,
        "tokens": case.tokens,
        **{
            f"{decoder}_{which}_ms": round(value, 4)
            for decoder, own in steps.items()
            for which, value in own.items()
        },
        "native_over_onnx": round(native / onnx, 4),
        "times_faster": round(onnx / native, 4),
        "native_over_one": round(native / single[NATIVE], 4),
        "onnx_over_one": round(onnx / single[ONNX], 4),
        "read_gb_a_second": round(rate / 1e9, 2),
        "floor_ms": round(floor_ms, 4),
        "times_floor": round(native / floor_ms, 4),
        **{
            f"{decoder}_choice_{which}_ms": round(value, 4)
            for decoder, own in times.items()
            for which, value in summary(own.choices).items()
        },
    }


if __name__ == "__main__":
    run(main)

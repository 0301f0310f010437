"""Time of encoding a window, clips, and of a decoder pass, by backend, beside the time that reading its bytes takes.

A pass appends tokens to rows, of which each has a window of its own and tokens before. Passes over several tokens
verify drafts; their cost over that of one token, and the rate at which drafts are accepted, decide what speculation
gains. Backends take turns, in bursts of passes on the encoder output of noise: many tokens are about as likely then,
the dearest case for the projection to the vocabulary in int8. The first quarter of a burst is not counted, while
threads of another backend may still spin.

The floor is the bytes of weights, keys and values that a pass reads over the rate at which this machine reads so many
bytes again and again. With ``--dims`` the weights are random, of a published model's dimensions.

    python benchmarks/steps.py --model small --backend native onnx --save steps
    python benchmarks/steps.py --dims large-v3-turbo --backend torch --device cuda
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from program import Args, Parser, Row, add, main, note, spread, stop
from random_weights import SIZES

if TYPE_CHECKING:
    from harken.contract import Backend, Session
    from harken.types import Dims

POSITIONS_PER_SECOND, WINDOW_S = 50, 30.0
UNCOUNTED = 0.25
"""Share of a burst that is not counted."""
BYTES = {"int8": 1, "int16": 1, "fp16": 2, "bf16": 2, "fp32": 4}
"""Bytes of a weight of the decoder."""
CACHE_BYTES = {"native": 1, "onnx": 4, "torch": 2}
"""Bytes of a key or value of a window, of each backend in its lower precisions; with int16 they are 2."""


def options(parser: Parser) -> None:
    parser.add_argument("--dims", choices=SIZES, help="random weights of these dimensions instead of a model")
    add(parser, "--backend", ("native",), "backends", choices=("native", "onnx", "torch", "numpy"))
    add(parser, "--precision", "auto", "of all backends")
    add(parser, "--device", "auto", "of the PyTorch backend")
    add(parser, "--positions", 1500, "positions of a window")
    add(parser, "--clips", (3.0, 8.0), "seconds of clips, whose encoding is compared with that of a window")
    add(parser, "--tokens", (1, 2, 3, 5, 8), "tokens of a pass of one row")
    add(parser, "--rows", (1, 2, 8), "rows of a pass of one token")
    add(parser, "--past", 40, "tokens before a pass")
    add(parser, "--bursts", 8, "bursts of each pass")
    add(parser, "--burst-s", 0.25, "seconds of a burst")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each backend and kind of pass; ``encode_ms`` is that of a window, then come shares of it."""
    backends = {name: load(name, args) for name in args.backend}
    model, cases = args.dims or Path(args.model).name, [(1, n) for n in sorted({1, *args.tokens})]
    cases += [(n, 1) for n in sorted(args.rows) if n > 1]
    seconds: dict[tuple[str, int, int], list[float]] = {}
    lengths = (args.positions / POSITIONS_PER_SECOND, *args.clips)
    encoding: dict[tuple[str, float], list[float]] = {(name, s): [] for name in backends for s in lengths}
    for n_rows in sorted({n for n, _ in cases}):
        sessions = {name: open_session(backend, n_rows, args) for name, backend in backends.items()}
        for _ in range(args.bursts):
            for name, backend in backends.items():
                for clip_s in lengths:
                    work = partial(encode, backend, 1, args, clip_s)
                    encoding[name, clip_s].append(timed(work))
                for n_tokens in (n for own, n in cases if own == n_rows):
                    taken = burst(sessions[name], backend.dims, n_rows, n_tokens, args)
                    seconds.setdefault((name, n_rows, n_tokens), []).extend(taken)
        note(f"{model}, {n_rows} rows: measured")
    for name, backend in backends.items():
        window_s, *clips_s = (min(encoding[name, length]) for length in lengths)
        shares = {f"clip {s:g} s": round(own / window_s, 3) for s, own in zip(args.clips, clips_s, strict=True)}
        for n_rows, n_tokens in cases:
            taken, single = seconds[name, n_rows, n_tokens], seconds[name, 1, 1]
            size = pass_bytes(name, backend, n_rows, args)
            yield {
                "model": model,
                "backend": name,
                "precision": backend.capabilities.precision,
                "rows": n_rows,
                "tokens": n_tokens,
                "encode_ms": round(1000 * window_s, 3),
                **shares,
                **spread("ms", [1000 * each for each in taken], 4),
                "over_one": round(min(taken) / min(single), 3),
                "floor_ms": round(1000 * reading_s(size), 4),
            }


def load(name: str, args: Args) -> Backend:
    """Return a backend with a model, or with random weights."""
    if not args.dims:
        import harken

        options = {"precision": args.precision, "device": args.device, "threads": args.threads}
        return harken.load(args.model, backend=name, **options).backend
    from random_weights import draw_weights, make_dims

    dims = make_dims(args.dims)
    if name == "torch":
        import torch

        from harken.backends.torch import TorchBackend

        torch.set_num_threads(args.threads)
        return TorchBackend(dims, draw_weights(dims), device=args.device, precision=args.precision)
    if name != "native":
        stop(f"--backend {name}: allowed with --dims are native and torch")
    from harken.backends.native import NativeBackend

    return NativeBackend(dims, draw_weights(dims), precision=args.precision, threads=args.threads)


def encode(backend: Backend, n_windows: int, args: Args, clip_s: float | None = None) -> Any:
    """Encode windows of noise; of so many seconds, behind which there is padding, or whole."""
    import numpy as np

    from harken.transcribe.window_decoder import EncodedLength

    window = backend.dims.n_audio_ctx
    positions = min(args.positions, window)
    content = min(positions, round((clip_s or WINDOW_S) * POSITIONS_PER_SECOND))
    noise = np.random.default_rng(0).standard_normal(
        (n_windows, backend.dims.n_mels, 2 * positions), np.float32
    )
    noise[:, :, 2 * content :] = 0
    padded = backend.capabilities.frozen_padding and content < positions == window
    encoded = EncodedLength().positions(2 * content, window) if padded else None
    frames = 2 * encoded if encoded else None
    return backend.encode(noise[:, :, :frames] / 3, padded=encoded is not None)


def open_session(backend: Backend, n_rows: int, args: Args) -> Session:
    """Open a session that has read some tokens in every row."""
    features = encode(backend, n_rows, args)
    session = backend.open_session(features, range(n_rows), backend.dims.n_text_ctx)
    session.extend([draw_tokens(args.past, seed=row) for row in range(n_rows)])
    return session


def burst(session: Session, dims: Dims, n_rows: int, n_tokens: int, args: Args) -> list[float]:
    """Repeat a pass for some time; return the seconds of each but the first ones."""
    new = [draw_tokens(n_tokens, seed=100 + row) for row in range(n_rows)]
    seconds: list[float] = []
    began = perf_counter()
    while (started := perf_counter()) < began + args.burst_s or not seconds:
        session.extend(new, n_tokens).top(1)
        ended = perf_counter()
        session.rewind([args.past] * n_rows)
        if started >= began + UNCOUNTED * args.burst_s:
            seconds.append(ended - started)
    return seconds


def draw_tokens(n: int, seed: int) -> list[int]:
    """Return some ordinary tokens."""
    import numpy as np

    drawn: list[int] = np.random.default_rng(seed).integers(0, 50_000, n).tolist()
    return drawn


def pass_bytes(name: str, backend: Backend, n_rows: int, args: Args) -> int:
    """Return the bytes that a pass reads: all weights, and the keys and values of each row's window and past."""
    dims, precision = backend.dims, backend.capabilities.precision
    weights = dims.n_text_layer * 14 * dims.n_text_state**2 + dims.n_text_state * dims.n_vocab
    positions = min(args.positions, dims.n_audio_ctx) + args.past
    cache = {"fp32": 4, "int16": 2}.get(precision, CACHE_BYTES.get(name, 4))
    return weights * BYTES[precision] + n_rows * 2 * dims.n_text_layer * dims.n_text_state * positions * cache


def reading_s(n_bytes: int) -> float:
    """Return the least seconds in which this machine reads so many bytes again: a matrix times a vector."""
    import numpy as np

    columns = 4096
    matrix = np.ones((max(1, n_bytes // 4 // columns), columns), np.float32)
    vector = np.ones(columns, np.float32)
    return min(timed(lambda: matrix @ vector) for _ in range(20)) * n_bytes / matrix.nbytes


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    began = perf_counter()
    work()
    return perf_counter() - began


if __name__ == "__main__":
    main(
        rows, options, model="tiny.en", packages=("torch",),
        settings=("positions", "past", "bursts", "burst_s"),
    )  # fmt: skip

"""How far decoders of less than float32 are from it, and what a step of each takes.

Every decoder reads the text that float32 decodes, token by token and over the same features, so that only its own
arithmetic differs. KL is the mean divergence of its distribution from that of float32, flips the share of steps whose
best token is another.

    python benchmarks/precision.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from common import DEFAULT_SET, limit_threads, machine, parser, positive, read_set, require, run, table

if TYPE_CHECKING:
    import harken
    from harken.backends.onnx.linear import Linear
    from harken.backends.onnx.runtimes import Graph
    from harken.backends.onnx.session import OnnxFeatures
    from harken.contract import Floats
    from harken.types import Dims

BLOCKS = (16, 32, 64, 128)
ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A window as it was encoded, and the tokens to read over it."""

    features: OnnxFeatures
    tokens: tuple[int, ...]


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--set", default=DEFAULT_SET, metavar="NAME", help=f"set to read ({DEFAULT_SET})")
    its.add_argument("--limit", type=positive, default=12, metavar="N", help="recordings to read (12)")
    args = its.parse_args()
    require("harken")
    limit_threads(args.threads)
    print(machine())
    import numpy as np

    import harken
    from harken.backends.onnx.linear import float_linear, int8_linear

    recognizer = harken.load("tiny.en", precision="fp32", threads=args.threads)
    passages = list(
        read(recognizer, [recording.path for recording in read_set(args.audio, args.set, args.limit)])
    )
    recipes: dict[str, Linear] = {
        "float32": float_linear,
        **{f"int8, blocks of {b}": partial(int8_linear, block=b) for b in BLOCKS},
    }
    with tempfile.TemporaryDirectory() as folder:
        decoders = {
            name: compiled(linear, Path(folder) / f"{i}.onnx", args.threads)
            for i, (name, linear) in enumerate(recipes.items())
        }
        times: dict[str, list[float]] = {name: [] for name in decoders}
        logits: dict[str, Floats] = {}
        for _ in range(ROUNDS):
            for name, decoder in decoders.items():
                logits[name] = follow(decoder, recognizer.dims, passages, times[name])
    rows = [
        [
            name,
            f"{divergence(logits['float32'], values):.5f}",
            f"{100 * np.mean(logits['float32'].argmax(1) != values.argmax(1)):.2f}",
            f"{1000 * np.median(times[name]):.2f}",
        ]
        for name, values in logits.items()
    ]
    steps = len(logits["float32"])
    print(f"\n{table((f'decoder, {steps} steps', 'KL', 'flips, %', 'median step, ms'), rows)}")


def read(recognizer: harken.Recognizer, paths: Sequence[Path]) -> Iterator[Passage]:
    """The first window of each recording, and what float32 decodes of it."""
    from harken.audio import load, log_mel, pad_or_trim
    from harken.backends.onnx.session import OnnxFeatures
    from harken.decoding import Greedy, Window, decode, make_prompt, make_rules
    from harken.types import WINDOW_SAMPLES

    backend, tokenizer = recognizer.backend, recognizer.tokenizer
    rules = make_rules(tokenizer, timestamps=True)
    prompt = make_prompt(tokenizer, backend.dims.n_text_ctx, language="en", task="transcribe", timestamps=True)
    for path in paths:
        mel = pad_or_trim(log_mel(load(path), backend.dims.n_mels, WINDOW_SAMPLES))
        features = backend.encode(mel[None])
        assert isinstance(features, OnnxFeatures), "the CPU engine was loaded"
        window = Window(audio=0, prompt=prompt)
        (decoded,), _ = decode(backend, features, [window], tokenizer=tokenizer, rules=rules, strategy=Greedy())
        yield Passage(features=features, tokens=(*prompt, *decoded.hypothesis.tokens))


def compiled(linear: Linear, path: Path, threads: int) -> Graph:
    """The decoder of tiny.en with the given linear layers."""
    import onnx

    from harken.backends.onnx.graphs import decoder
    from harken.backends.onnx.runtimes import OnnxRuntimeGraph
    from harken.checkpoints import open_checkpoint, resolve
    from harken.checkpoints.alignment import default_heads

    checkpoint = open_checkpoint(resolve("tiny.en"))
    heads = checkpoint.alignment_heads or default_heads(checkpoint.dims)
    onnx.save_model(decoder(checkpoint.weights, checkpoint.dims, linear, heads), path)
    return OnnxRuntimeGraph(path, threads)


def follow(graph: Graph, dims: Dims, passages: Sequence[Passage], times: list[float]) -> Floats:
    """Logits after every token of every passage, shape (steps, n_vocab); the time of each step is noted."""
    import numpy as np

    from harken.backends.onnx.session import OnnxSession

    logits = []
    for passage in passages:
        session = OnnxSession(graph, dims, passage.features, [0], dims.n_text_ctx)
        for token in passage.tokens:
            began = perf_counter()
            logits.append(session.extend([[token]]).values)
            times.append(perf_counter() - began)
    return np.concatenate(logits)


def divergence(reference: Floats, other: Floats) -> float:
    """Mean Kullback-Leibler divergence of the distributions that two sets of logits stand for, in nats."""
    import numpy as np

    p, q = (values - np.logaddexp.reduce(values, axis=1, keepdims=True) for values in (reference, other))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


if __name__ == "__main__":
    run(main)

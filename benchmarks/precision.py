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
    from harken.backends.onnx.builder import GraphBuilder
    from harken.backends.onnx.graphs import Weights
    from harken.backends.onnx.linear import QuantizationScheme
    from harken.backends.onnx.runtimes import Graph
    from harken.backends.onnx.session import OnnxFeatures
    from harken.contract import Floats
    from harken.types import Dims

BLOCKS = (32, 128)
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

    recognizer = harken.load("tiny.en", precision="fp32", threads=args.threads)
    paths = [recording.path for recording in read_set(args.audio, args.set, args.limit)]
    passages = list(read(recognizer, paths))
    recipes = make_recipes()
    with tempfile.TemporaryDirectory() as folder:
        decoders = {
            name: compiled(*recipe, Path(folder) / f"{i}.onnx", args.threads)
            for i, (name, recipe) in enumerate(recipes.items())
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
    from harken.audio import load_audio, log_mel, pad_or_trim
    from harken.backends.onnx.session import OnnxFeatures
    from harken.decoding import Greedy, Window, decode, make_logit_rules, make_prompt
    from harken.types import WINDOW_SAMPLES

    backend, tokenizer = recognizer.backend, recognizer.tokenizer
    rules = make_logit_rules(tokenizer, timestamps=True)
    prompt = make_prompt(tokenizer, backend.dims.n_text_ctx, language="en", task="transcribe", timestamps=True)
    for path in paths:
        mel = pad_or_trim(log_mel(load_audio(path), backend.dims.n_mels, WINDOW_SAMPLES))
        features = backend.encode(mel[None])
        assert isinstance(features, OnnxFeatures), "the CPU engine was loaded"
        window = Window(window_index=0, prompt=prompt)
        (decoded,), _ = decode(
            backend, features, [window], tokenizer=tokenizer, logit_rules=rules, strategy=Greedy()
        )
        yield Passage(features=features, tokens=(*prompt, *decoded.hypothesis.tokens))


def make_recipes() -> dict[str, tuple[Weights, QuantizationScheme]]:
    """Decoders of tiny.en to compare: weights as they are or rotated, and how to multiply by them."""
    from harken.backends.onnx.linear import FLOAT_SCHEME, INTEGER_SCHEMES, QuantizationScheme
    from harken.backends.onnx.rotation import RotatedWeights
    from harken.checkpoints import open_checkpoint, resolve_model

    checkpoint = open_checkpoint(resolve_model("tiny.en"))
    plain, rotated = checkpoint.weights, RotatedWeights(checkpoint.weights, checkpoint.dims)
    int8, int7 = INTEGER_SCHEMES["int8"], INTEGER_SCHEMES["int7"]
    blocks = {size: QuantizationScheme(*[partial(block_linear, block=size)] * 2) for size in BLOCKS}
    return {
        "float32": (plain, FLOAT_SCHEME),
        "float32, rotated": (rotated, FLOAT_SCHEME),
        **{f"blocks of {size}": (plain, its) for size, its in blocks.items()},
        **{f"blocks of {size}, rotated": (rotated, its) for size, its in blocks.items()},
        "rows": (plain, QuantizationScheme(int8.linear, int8.linear)),
        "rows, loud units apart": (plain, int8),
        "rows, rotated": (rotated, QuantizationScheme(int8.linear, int8.linear)),
        "**rows, rotated, loud units apart**": (rotated, int8),
        "the same with weights of 7 bits": (rotated, int7),
    }


def block_linear(graph: GraphBuilder, x: str, weight: Floats, block: int) -> str:
    """Multiply 8-bit weights, one scale for each block of a row, with activations quantised as finely on the fly."""
    import numpy as np

    from harken.backends.onnx.builder import MICROSOFT_DOMAIN

    rows, columns = weight.shape
    grouped = weight.reshape(rows, columns // block, block)
    scales = np.abs(grouped).max(axis=2) / np.float32(127)
    divisors = np.where(scales > 0, scales, np.float32(1))
    quantised = (np.rint(grouped / divisors[:, :, None]) + 128).astype(np.uint8)
    its = [x, graph.constant(quantised), graph.constant(scales)]
    return graph.op(
        "MatMulNBits",
        *its,
        domain=MICROSOFT_DOMAIN,
        K=columns,
        N=rows,
        bits=8,
        block_size=block,
        accuracy_level=4,
    )


def compiled(weights: Weights, arithmetic: QuantizationScheme, path: Path, threads: int) -> Graph:
    """The decoder of tiny.en."""
    import onnx

    from harken.backends.onnx.graphs import decoder
    from harken.backends.onnx.runtimes import OnnxRuntimeGraph
    from harken.checkpoints import open_checkpoint, resolve_model
    from harken.checkpoints.alignment_heads import default_heads

    checkpoint = open_checkpoint(resolve_model("tiny.en"))
    heads = checkpoint.alignment_heads or default_heads(checkpoint.dims)
    onnx.save_model(decoder(weights, checkpoint.dims, arithmetic, heads), path)
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

"""Decoders of less than float32 beside float32: difference of their distributions, and time of a step.

Every decoder reads the text that float32 decodes, token by token and over the same features, so that only the
arithmetic of the decoder differs. KL is the mean divergence of the distribution from that of float32, in nats, and
flips are the steps whose best token is another.

    python benchmarks/decisions int8
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import results
from arguments import DEFAULT_SET, limit_threads, parser, positive, require
from recordings import read_set

if TYPE_CHECKING:
    import harken
    from harken.backends.onnx.builder import GraphBuilder
    from harken.backends.onnx.graphs import Weights
    from harken.backends.onnx.linear import QuantizationScheme
    from harken.backends.onnx.session import OnnxFeatures
    from harken.contract import Floats, Session

    OpenSession = Callable[[OnnxFeatures], Session]

BLOCKS = (32, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """An encoded window, and the tokens to read over it."""

    features: OnnxFeatures
    tokens: tuple[int, ...]


def main() -> None:
    options = parser(__doc__, sets=(DEFAULT_SET,))
    options.set_defaults(limit=12)
    options.add_argument("--rounds", type=positive, default=5, metavar="N", help="turns of each decoder (5)")
    args = options.parse_args()
    require("harken")
    limit_threads(args.threads)
    import numpy as np

    import harken

    result = results.begin(args.save or "int8", {"model": "tiny.en", "threads": args.threads})
    recognizer = harken.load("tiny.en", precision="fp32", threads=args.threads)
    native = harken.load("tiny.en", backend="native", threads=args.threads).backend
    paths = [entry.path for name in args.set for entry in read_set(args.audio, name, args.limit, language="en")]
    passages = list(read(recognizer, paths))
    with tempfile.TemporaryDirectory() as folder:
        decoders: dict[str, OpenSession] = {
            name: compile_decoder(*recipe, Path(folder) / str(i), args.threads)
            for i, (name, recipe) in enumerate(make_recipes().items())
        }
        decoders["native"] = lambda features: native.open_session(
            native.reuse_encoder_output(features), [0], native.dims.n_text_ctx
        )
        times: dict[str, list[float]] = {name: [] for name in decoders}
        logits: dict[str, Floats] = {}
        for _ in range(args.rounds):
            for name, decoder in decoders.items():
                logits[name] = follow(decoder, passages, times[name])
    reference = logits["float32"]
    for name, values in logits.items():
        flips = np.mean(reference.argmax(1) != values.argmax(1))
        result.add(
            decoder=name,
            steps=len(values),
            kl=round(divergence(reference, values), 6),
            flips_percent=round(100 * float(flips), 3),
            step_ms=round(1000 * median(times[name]), 4),
        )
    if args.save:
        print(results.write(result))


def read(recognizer: harken.Recognizer, paths: Sequence[Path]) -> Iterator[Passage]:
    """Yield the first window of each recording, and the tokens that float32 decodes."""
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
    """Return the decoders of tiny.en: weights as they are or rotated, and the ways to multiply by them."""
    from harken.backends.onnx.linear import FLOAT_SCHEME, INTEGER_SCHEMES, QuantizationScheme
    from harken.backends.rotation import RotatedWeights
    from harken.checkpoints import open_checkpoint, resolve_model

    checkpoint = open_checkpoint(resolve_model("tiny.en"))
    plain, rotated = checkpoint.weights, RotatedWeights(checkpoint.weights, checkpoint.dims)
    int8, int7 = INTEGER_SCHEMES["int8"], INTEGER_SCHEMES["int7"]
    blocks = {size: QuantizationScheme(*[partial(block_linear, block=size)] * 2) for size in BLOCKS}
    return {
        "float32": (plain, FLOAT_SCHEME),
        "float32, rotated": (rotated, FLOAT_SCHEME),
        **{f"blocks of {size}": (plain, scheme) for size, scheme in blocks.items()},
        **{f"blocks of {size}, rotated": (rotated, scheme) for size, scheme in blocks.items()},
        "rows": (plain, QuantizationScheme(int8.linear, int8.linear)),
        "rows, outlier channels apart": (plain, int8),
        "rows, rotated": (rotated, QuantizationScheme(int8.linear, int8.linear)),
        "rows, rotated, outlier channels apart": (rotated, int8),
        "rows, rotated, outlier channels apart, 7 bits": (rotated, int7),
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
    inputs = [x, graph.constant(quantised), graph.constant(scales)]
    return graph.op(
        "MatMulNBits",
        *inputs,
        domain=MICROSOFT_DOMAIN,
        K=columns,
        N=rows,
        bits=8,
        block_size=block,
        accuracy_level=4,
    )


def compile_decoder(weights: Weights, scheme: QuantizationScheme, folder: Path, threads: int) -> OpenSession:
    """Compile the decoder of tiny.en, and return a function that opens its sessions; its files go to a new folder."""
    from harken.backends.onnx.graph_files import MODEL_FILE, write_graph
    from harken.backends.onnx.graphs import decoder
    from harken.backends.onnx.runtimes import OnnxRuntimeGraph
    from harken.backends.onnx.session import OnnxSession
    from harken.checkpoints import open_checkpoint, resolve_model
    from harken.checkpoints.alignment_heads import default_heads

    checkpoint = open_checkpoint(resolve_model("tiny.en"))
    heads = checkpoint.alignment_heads or default_heads(checkpoint.dims)
    folder.mkdir()
    write_graph(decoder(weights, checkpoint.dims, scheme, heads), folder)
    graph, dims = OnnxRuntimeGraph(folder / MODEL_FILE, threads), checkpoint.dims
    return lambda features: OnnxSession(graph, dims, features, [0], dims.n_text_ctx)


def follow(open_session: OpenSession, passages: Sequence[Passage], times: list[float]) -> Floats:
    """Return the logits after every token of every passage, shape (steps, n_vocab); add the time of each step."""
    import numpy as np

    from harken.backends.host_logits import HostLogits

    values = []
    for passage in passages:
        session = open_session(passage.features)
        for token in passage.tokens:
            began = perf_counter()
            logits = session.extend([[token]])
            times.append(perf_counter() - began)
            assert isinstance(logits, HostLogits), "the CPU engines were loaded"
            values.append(logits.values)
    return np.concatenate(values)


def divergence(reference: Floats, other: Floats) -> float:
    """Return the mean Kullback-Leibler divergence of the distributions of two sets of logits, in nats."""
    import numpy as np

    p, q = (values - np.logaddexp.reduce(values, axis=1, keepdims=True) for values in (reference, other))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())

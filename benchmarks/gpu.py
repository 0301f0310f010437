"""Speed of the PyTorch backend at the dimensions of a large model, beside transformers.

Weights and windows are random: neither changes what is computed. Every engine reads a prompt of 4 tokens and then
chooses the most probable token a fixed number of times, with no rules and no end; encoding is timed by itself, and what
the encoder gave is handed to each decoder. harken runs twice, with its steps recorded as CUDA graphs and without;
transformers with its growing cache, and with its static cache, which it compiles on CUDA. The first call of each, with
recording and compiling, stands in a column of its own. Runs take turns; the table has medians.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --dims tiny --device cpu --steps 16 --rounds 1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from common import importable, limit_threads, machine, note, parser, positive, require, run, table

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harken.backends.torch import TorchBackend
    from harken.types import Dims

# n_mels, encoder and decoder width, heads, encoder layers, decoder layers, vocabulary
SIZES = {
    "tiny": (80, 384, 6, 4, 4, 51865),
    "small": (80, 768, 12, 12, 12, 51865),
    "large-v3-turbo": (128, 1280, 20, 32, 4, 51866),
    "large-v3": (128, 1280, 20, 32, 32, 51866),
}
PROMPT = (50258, 50259, 50360, 50364)
HEADER = ("engine", "batch", "encode, ms a window", "tokens/s", "ms a step", "first call, s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Something that encodes windows and decodes them greedily.

    Parameters
    ----------
    name : str
    encode : callable
        From log-mel of shape (batch, n_mels, 3000) on the host to what `decode` takes.
    decode : callable
        Decodes so many tokens of every window; returns them, shape (batch, steps).
    """

    name: str
    encode: Callable[[NDArray[Any]], Any]
    decode: Callable[[Any, int], list[list[int]]]


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds that one engine took at one batch size."""

    first: float = 0.0
    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def main() -> None:
    args = arguments()
    require("harken", "torch")
    limit_threads(args.threads)
    import numpy as np
    import torch

    torch.set_num_threads(args.threads)
    dims = make_dims(args.dims)
    engines = list(make_engines(dims, args))
    print(machine())
    rng = np.random.default_rng(0)
    rows = []
    for batch in args.batch:
        mel = rng.standard_normal((batch, dims.n_mels, 2 * dims.n_audio_ctx), np.float32)
        rows += measure(engines, mel, args.steps, args.rounds)
    title = f"{args.dims}, {args.steps} steps a window, median of {args.rounds}"
    print(f"\n### {title}\n\n{table(HEADER, rows)}")
    if torch.cuda.is_available():
        most_gb = torch.cuda.max_memory_allocated() / 1e9
        print(f"\nMost memory taken on the device, by all engines together: {most_gb:.1f} GB.")


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--dims", choices=SIZES, default="large-v3", help="whose dimensions (large-v3)")
    its.add_argument("--device", default="auto", help="auto, cuda, mps or cpu (auto)")
    its.add_argument("--precision", default="auto", help="auto, fp32, fp16 or bf16, of all engines (auto)")
    its.add_argument(
        "--batch", type=positive, nargs="+", default=[1, 8], metavar="N", help="windows at a time (1 8)"
    )
    its.add_argument("--steps", type=positive, default=200, metavar="N", help="tokens to decode (200)")
    its.add_argument("--rounds", type=positive, default=5, metavar="N", help="turns of each engine (5)")
    return its.parse_args()


def make_dims(name: str) -> Dims:
    from harken.types import Dims

    n_mels, state, heads, audio_layers, text_layers, vocabulary = SIZES[name]
    return Dims(
        n_mels=n_mels, n_audio_ctx=1500, n_audio_state=state, n_audio_head=heads, n_audio_layer=audio_layers,
        n_vocab=vocabulary, n_text_ctx=448, n_text_state=state, n_text_head=heads, n_text_layer=text_layers,
    )  # fmt: skip


def make_engines(dims: Dims, args: argparse.Namespace) -> Iterator[Engine]:
    """Load every engine that can be had; the first says what it computes on."""
    from harken.backends.torch import TorchBackend

    weights = draw_weights(dims)
    recorded = TorchBackend(dims, weights, device=args.device, precision=args.precision)
    its = recorded.capabilities
    print(f"* {its.detail}")
    if its.device == "cuda":
        yield harken_engine("harken, CUDA graphs", recorded)
    plain = TorchBackend(dims, weights, device=args.device, precision=args.precision, graph_capture=None)
    yield harken_engine("harken, step by step", plain)
    if not importable("transformers"):
        note("transformers is left out: it is not installed")
        return
    yield from transformers_engines(dims, its.device, its.precision)


def draw_weights(dims: Dims) -> Mapping[str, NDArray[Any]]:
    """Random weights that keep activations near one, in half precision as they are published."""
    import numpy as np

    from harken.checkpoints.weight_shapes import expected_shapes

    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in expected_shapes(dims).items():
        scale = 0.02 if len(shape) > 1 else 0.1
        values = scale * rng.standard_normal(shape, np.float32)
        weights[name] = (values + (name.endswith(("ln.weight", "ln_post.weight")))).astype(np.float16)
    return weights


def harken_engine(name: str, backend: TorchBackend) -> Engine:
    """Through the contract: a session, `extend` and `top`."""

    def encode(mel: NDArray[Any]) -> Any:
        features = backend.encode(mel)
        wait()
        return features

    def decode(features: Any, steps: int) -> list[list[int]]:
        session = backend.open_session(features, range(features.n_windows), len(PROMPT) + steps)
        logits = session.extend([PROMPT] * features.n_windows)
        chosen: list[list[int]] = [[] for _ in range(features.n_windows)]
        for step in range(steps):
            ids, _ = logits.top(1)
            for row, token in zip(chosen, ids[:, 0].tolist(), strict=True):
                row.append(token)
            if step + 1 < steps:
                logits = session.extend([row[-1:] for row in chosen])
        return chosen

    return Engine(name=name, encode=encode, decode=decode)


def transformers_engines(dims: Dims, device: str, precision: str) -> Iterator[Engine]:
    """`GenerationMixin.generate`, which leaves out Whisper's own rules and long-form logic."""
    import torch
    from transformers import GenerationConfig, GenerationMixin, WhisperConfig, WhisperForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    config = WhisperConfig(
        vocab_size=dims.n_vocab,
        num_mel_bins=dims.n_mels,
        d_model=dims.n_text_state,
        encoder_layers=dims.n_audio_layer,
        encoder_attention_heads=dims.n_audio_head,
        encoder_ffn_dim=4 * dims.n_audio_state,
        decoder_layers=dims.n_text_layer,
        decoder_attention_heads=dims.n_text_head,
        decoder_ffn_dim=4 * dims.n_text_state,
        attn_implementation="sdpa",
    )
    model = WhisperForConditionalGeneration(config).to(device, dtype).eval()

    @torch.inference_mode()
    def encode(mel: NDArray[Any]) -> Tensor:
        features = model.get_encoder()(torch.tensor(mel).to(device, dtype)).last_hidden_state
        wait()
        return features

    def decoder(cache: str) -> Callable[[Tensor, int], list[list[int]]]:
        @torch.inference_mode()
        def decode(features: Tensor, steps: int) -> list[list[int]]:
            endless = GenerationConfig(
                max_new_tokens=steps, do_sample=False, cache_implementation=cache, use_cache=True,
                eos_token_id=None, pad_token_id=0, decoder_start_token_id=PROMPT[0],
            )  # fmt: skip
            tokens = GenerationMixin.generate(
                model,
                generation_config=endless,
                encoder_outputs=BaseModelOutput(last_hidden_state=features),
                decoder_input_ids=torch.tensor([PROMPT] * len(features), device=device),
            )
            chosen: list[list[int]] = tokens[:, -steps:].tolist()
            return chosen

        return decode

    yield Engine(name="transformers, growing cache", encode=encode, decode=decoder("dynamic"))
    yield Engine(name="transformers, static cache", encode=encode, decode=decoder("static"))


def wait() -> None:
    """Wait until the device has done what it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def measure(engines: list[Engine], mel: NDArray[Any], steps: int, rounds: int) -> list[list[str]]:
    """Run all engines in turns on the same windows: a line of the table each."""
    times = [Times() for _ in engines]
    for engine, its in zip(engines, times, strict=True):
        began = perf_counter()
        chosen = engine.decode(engine.encode(mel), steps)
        its.first = perf_counter() - began
        assert [len(row) for row in chosen] == [steps] * len(mel), (
            f"{engine.name} has not decoded {steps} steps"
        )
        note(f"{engine.name}, batch {len(mel)}: first call {its.first:.1f} s")
    for _ in range(rounds):
        for engine, its in zip(engines, times, strict=True):
            began = perf_counter()
            features = engine.encode(mel)
            encoded = perf_counter()
            engine.decode(features, steps)
            its.encode.append(encoded - began)
            its.decode.append(perf_counter() - encoded)
    return [row(engine, its, len(mel), steps) for engine, its in zip(engines, times, strict=True)]


def row(engine: Engine, its: Times, batch: int, steps: int) -> list[str]:
    seconds = median(its.decode)
    return [
        engine.name,
        str(batch),
        f"{1000 * median(its.encode) / batch:.1f}",
        f"{batch * steps / seconds:.0f}",
        f"{1000 * seconds / steps:.2f}",
        f"{its.first:.1f}",
    ]


if __name__ == "__main__":
    run(main)

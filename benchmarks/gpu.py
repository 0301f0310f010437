"""Speed of the PyTorch backend at the dimensions of a large model, beside transformers.

Weights and windows are random: neither changes what is computed. Every engine reads a prompt of 4 tokens and then
chooses the most probable token a fixed number of times, with no rules and no end; encoding is timed by itself, and what
the encoder gave is handed to each decoder. harken runs with and without CUDA graphs, transformers
with its growing cache and with its static cache, which it compiles on CUDA. The first call of each, with capture and
compilation, is reported by itself. Runs take turns; figures are medians.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --dims tiny --device cpu --steps 16 --rounds 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from program import Args, Parser, Row, add, importable, main, note
from random_weights import SIZES, draw_weights, make_dims

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harken.backends.torch import TorchBackend
    from harken.types import Dims

PROMPT = (50258, 50259, 50360, 50364)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that encodes windows and decodes them greedily.

    Parameters
    ----------
    name : str
    encode : callable
        Encodes log-mel of shape (batch, n_mels, 3000) on the host; the result is for `decode`.
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


def options(parser: Parser) -> None:
    add(parser, "--dims", "large-v3", "dimensions of this model", choices=SIZES)
    add(parser, "--device", "auto", "auto, cuda, mps or cpu")
    add(parser, "--precision", "auto", "auto, fp32, fp16 or bf16, of all engines")
    add(parser, "--batch", (1, 8), "windows at a time")
    add(parser, "--steps", 200, "tokens to decode")
    add(parser, "--rounds", 5, "turns of each engine")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each batch size and engine."""
    import numpy as np
    import torch

    torch.set_num_threads(args.threads)
    dims, rng = make_dims(args.dims), np.random.default_rng(0)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    engines = list(make_engines(dims, args))
    for batch in args.batch:
        mel = rng.standard_normal((batch, dims.n_mels, 2 * dims.n_audio_ctx), np.float32)
        for row in measure(engines, mel, args.steps, args.rounds):
            yield {"device": device} | row


def make_engines(dims: Dims, args: Args) -> Iterator[Engine]:
    """Load every engine that is installed."""
    from harken.backends.torch import TorchBackend

    weights = draw_weights(dims)
    captured = TorchBackend(dims, weights, device=args.device, precision=args.precision)
    capabilities = captured.capabilities
    note(capabilities.detail)
    if capabilities.device == "cuda":
        yield harken_engine("harken, CUDA graphs", captured)
    plain = TorchBackend(dims, weights, device=args.device, precision=args.precision, graph_capture=None)
    yield harken_engine("harken, step by step", plain)
    if not importable("transformers"):
        note("transformers is left out: it is not installed")
        return
    yield from transformers_engines(dims, capabilities.device, capabilities.precision)


def harken_engine(name: str, backend: TorchBackend) -> Engine:
    """Return harken as an engine: a session, `extend` and `top`."""

    def encode(mel: NDArray[Any]) -> Any:
        features = backend.encode(mel, None)
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
    """Yield transformers with each cache: `GenerationMixin.generate`, without Whisper's logit rules and long form."""
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
    """Wait until the device has finished its work."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def measure(engines: list[Engine], mel: NDArray[Any], steps: int, rounds: int) -> Iterator[Row]:
    """Run all engines in turns on the same windows; yield a row for each."""
    times = [Times() for _ in engines]
    for engine, engine_times in zip(engines, times, strict=True):
        began = perf_counter()
        chosen = engine.decode(engine.encode(mel), steps)
        engine_times.first = perf_counter() - began
        assert [len(row) for row in chosen] == [steps] * len(mel), (
            f"{engine.name} has not decoded {steps} steps"
        )
        note(f"{engine.name}, batch {len(mel)}: first call {engine_times.first:.1f} s")
    for _ in range(rounds):
        for engine, engine_times in zip(engines, times, strict=True):
            began = perf_counter()
            features = engine.encode(mel)
            encoded = perf_counter()
            engine.decode(features, steps)
            engine_times.encode.append(encoded - began)
            engine_times.decode.append(perf_counter() - encoded)
    for engine, engine_times in zip(engines, times, strict=True):
        seconds = median(engine_times.decode)
        yield {
            "engine": engine.name,
            "batch": len(mel),
            "encode_ms": round(1000 * median(engine_times.encode) / len(mel), 3),
            "tokens_per_second": round(len(mel) * steps / seconds, 1),
            "step_ms": round(1000 * seconds / steps, 4),
            "first_call_s": round(engine_times.first, 2),
        }


if __name__ == "__main__":
    main(
        rows, options, name="gpu", needs=("harken", "torch"), packages=("torch", "transformers"),
        settings=("dims", "steps", "rounds"),
    )  # fmt: skip

"""Speed of the PyTorch backend at the dimensions of a large model, beside transformers.

Weights and windows are random: neither changes what is computed. Every engine reads a prompt of 4 tokens and then
chooses the most probable token a fixed number of times, without an end; harken by Whisper's logit rules, transformers
by none. Encoding is timed by itself, and what the encoder gave is handed to each decoder. harken runs with CUDA graphs
where there are any, and at one window with drafts by a decoder of a few layers that shares the encoder. The first call
of each is reported by itself. Runs take turns; figures are medians. ``times_real_time`` is that of windows of 30 s with
so many tokens each: one of speech has 60 to 130.

For drafts, layers behind the assistant's add nothing to what they read, at the same cost, and the assistant's last norm
is disturbed by a share of it: by how much says how often it is right. ``tokens_a_pass`` is what that gives.

    python benchmarks/gpu.py --dims large-v3 large-v3-turbo --batch 1 8 32
    python benchmarks/gpu.py --dims tiny --device cpu --steps 16 --rounds 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from program import Args, Parser, Row, add, importable, main, note
from random_weights import SIZES, draw_weights, make_dims

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harken.backends.torch import TorchBackend
    from harken.decoding.logit_rules import LogitRules
    from harken.types import Dims

PROMPT = (50258, 50259, 50360, 50364)
WINDOW_S, N_TIMESTAMPS, EOT, BLANK, NON_SPEECH = 30, 1501, 50257, 220, range(0, 50000, 550)
SHARPNESS = 20
"""Factor on the decoder's last norm and on its positions: without it random logits are flat, so that no draft is
certain, and repeat one token."""
Weights = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that encodes windows and decodes them greedily."""

    name: str
    encode: Callable[[NDArray[Any]], Any]
    """Encodes log-mel of shape (batch, n_mels, 3000) on the host; the result is for `decode`."""
    decode: Callable[[Any, int], list[list[int]]]
    """Decodes so many tokens of every window; returns them, shape (batch, steps)."""
    passes: list[int] = field(default_factory=list)
    """Forward passes behind the prompt, of each call."""


ENGINES = ("graphs", "drafts", "transformers")


def options(parser: Parser) -> None:
    add(parser, "--dims", ("large-v3",), "dimensions of these models", choices=SIZES)
    add(parser, "--engine", ENGINES, "engines", choices=ENGINES)
    add(parser, "--disturbance", (0.01, 0.1), "shares by which the last norm of assistants differs")
    add(parser, "--device", "auto", "auto, cuda, mps or cpu")
    add(parser, "--precision", "auto", "auto, fp32, fp16 or bf16, of all engines")
    add(parser, "--batch", (1, 8), "windows at a time")
    add(parser, "--steps", 200, "tokens to decode")
    add(parser, "--rounds", 5, "turns of each engine")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each model, batch size and engine."""
    import numpy as np
    import torch

    torch.set_num_threads(args.threads)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    for name in args.dims:
        dims, rng = make_dims(name), np.random.default_rng(0)
        engines = list(make_engines(dims, args))
        for batch in args.batch:
            mel = rng.standard_normal((batch, dims.n_mels, 2 * dims.n_audio_ctx), np.float32)
            used = [engine for engine in engines if batch == 1 or "drafts" not in engine.name]
            for row in measure(used, mel, args.steps, args.rounds):
                yield {"model": name, "device": device} | row
        del engines
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def make_engines(dims: Dims, args: Args) -> Iterator[Engine]:
    """Load the engines that are asked for, if they are installed."""
    from harken.backends.torch import TorchBackend

    n_layers = max(1, dims.n_text_layer // 16)
    weights = model_weights(dims, n_layers)
    make = {"device": args.device, "precision": args.precision}
    captured = TorchBackend(dims, weights, **make)
    capabilities = captured.capabilities
    note(capabilities.detail)
    if "graphs" in args.engine:
        yield harken_engine("harken", captured)
    if "drafts" in args.engine:
        few = replace(dims, n_text_layer=n_layers)
        for share in args.disturbance:
            assistant = TorchBackend(few.without_encoder(), assistant_weights(weights, few, share), **make)
            yield harken_engine(f"harken, drafts by {n_layers} layers, {share:g} off", captured, assistant)
    if "transformers" in args.engine:
        if importable("transformers"):
            yield transformers_engine(dims, capabilities.device, capabilities.precision)
        else:
            note("transformers is left out: it is not installed")


def model_weights(dims: Dims, n_layers: int) -> Weights:
    """Draw the weights of a model whose text is that of its decoder's first layers."""
    import numpy as np

    weights = dict(draw_weights(dims))
    for name in ("decoder.ln.weight", "decoder.positional_embedding"):
        weights[name] = weights[name] * np.float16(SHARPNESS)
    for layer in range(n_layers, dims.n_text_layer):
        for part in ("attn.out", "cross_attn.out", "mlp.2"):
            for kind in ("weight", "bias"):
                name = f"decoder.blocks.{layer}.{part}.{kind}"
                weights[name] = np.zeros_like(weights[name])
    return weights


def assistant_weights(weights: Weights, dims: Dims, share: float) -> Weights:
    """Return the first layers of a decoder, whose last norm differs by a share of it."""
    import numpy as np

    from harken.checkpoints.weight_shapes import expected_shapes

    own = {name: weights[name] for name in expected_shapes(dims.without_encoder())}
    factors = np.random.default_rng(1).normal(1, share, dims.n_text_state).astype(np.float16)
    return own | {"decoder.ln.weight": own["decoder.ln.weight"] * factors}


def make_rules(dims: Dims) -> LogitRules:
    """Return Whisper's rules, and that text has no end."""
    import numpy as np

    from harken.decoding.logit_rules import LogitRules

    begin = dims.n_vocab - N_TIMESTAMPS
    return LogitRules(
        eot=EOT, timestamp_begin=begin, suppressed=np.array([*NON_SPEECH, *range(EOT, begin)], np.int64),
        first_banned=((BLANK, BLANK + 1),), timestamps=True, max_initial_timestamp=begin + 50,
    )  # fmt: skip


def harken_engine(name: str, backend: TorchBackend, assistant: TorchBackend | None = None) -> Engine:
    """Return harken as an engine: greedy decoding of windows, maybe with drafts."""
    from harken.decoding.candidate_generator import Assistant
    from harken.decoding.generate import Row as DecodedRow
    from harken.decoding.generate import WindowEnd, generate, pick_best
    from harken.decoding.speculation import DraftContext, SpeculativeDecoder
    from harken.decoding.types import Window

    rules = make_rules(backend.dims)
    speculative = SpeculativeDecoder(
        backend.clock, assistant=Assistant(backend=assistant, shares_encoder=True) if assistant else None
    )
    passes: list[int] = []

    def encode(mel: NDArray[Any]) -> Any:
        features = backend.encode(mel, None)
        wait()
        return features

    def decode(features: Any, steps: int) -> list[list[int]]:
        numbers = range(features.n_windows)
        session = backend.open_session(features, numbers, len(PROMPT) + steps)
        logits = session.extend([PROMPT] * len(numbers))
        found = [DecodedRow(PROMPT, steps, WindowEnd(EOT)) for _ in numbers]
        drafts = None
        if assistant is not None:
            context = DraftContext(
                speculative, lambda drafter: drafter.backend.reuse_encoder_output(features), WINDOW_S
            )
            windows = [Window(window_index=number, prompt=PROMPT) for number in numbers]
            drafts = context.open_draft_session(windows, rules)
        passes.append(
            generate(session, found, logits, rules, pick_best, greedy=rules.greedy, draft_session=drafts)
        )
        return [row.tokens for row in found]

    return Engine(name=name, encode=encode, decode=decode, passes=passes)


def transformers_engine(dims: Dims, device: str, precision: str) -> Engine:
    """Return transformers with its growing cache: `GenerationMixin.generate`, without Whisper's rules and long form."""
    import torch
    from transformers import GenerationConfig, GenerationMixin, WhisperConfig, WhisperForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    config = WhisperConfig(
        vocab_size=dims.n_vocab, num_mel_bins=dims.n_mels, d_model=dims.n_text_state,
        encoder_layers=dims.n_audio_layer, encoder_attention_heads=dims.n_audio_head,
        encoder_ffn_dim=4 * dims.n_audio_state, decoder_layers=dims.n_text_layer,
        decoder_attention_heads=dims.n_text_head, decoder_ffn_dim=4 * dims.n_text_state, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device(device):
        model = WhisperForConditionalGeneration(config).to(dtype).eval()

    @torch.inference_mode()
    def encode(mel: NDArray[Any]) -> Tensor:
        features = model.get_encoder()(torch.tensor(mel).to(device, dtype)).last_hidden_state
        wait()
        return features

    @torch.inference_mode()
    def decode(features: Tensor, steps: int) -> list[list[int]]:
        endless = GenerationConfig(
            max_new_tokens=steps, do_sample=False, cache_implementation="dynamic", use_cache=True,
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

    return Engine(name="transformers, growing cache", encode=encode, decode=decode)


def wait() -> None:
    """Wait until the device has finished its work."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def measure(engines: list[Engine], mel: NDArray[Any], steps: int, rounds: int) -> Iterator[Row]:
    """Run all engines in turns on the same windows; yield a row for each."""
    batch, encode_s, decode_s = len(mel), {}, {}
    for turn in range(rounds + 1):  # in the first all is captured and compiled
        for engine in engines:
            began = perf_counter()
            features = engine.encode(mel)
            encoded = perf_counter()
            chosen = engine.decode(features, steps)
            assert [len(row) for row in chosen] == [steps] * batch, (
                f"{engine.name} has not decoded {steps} steps"
            )
            encode_s.setdefault(engine.name, []).append(encoded - began)
            decode_s.setdefault(engine.name, []).append(perf_counter() - encoded)
            note(f"{engine.name}, batch {batch}, turn {turn}: {perf_counter() - began:.1f} s")
    for engine in engines:
        (first_encode_s, *encoding), (first_decode_s, *decoding) = encode_s[engine.name], decode_s[engine.name]
        yield {
            "engine": engine.name,
            "batch": batch,
            "encode_ms": round(1000 * median(encoding) / batch, 3),
            "step_ms": round(1000 * median(decoding) / steps, 4),
            "times_real_time": round(WINDOW_S * batch / (median(encoding) + median(decoding)), 1),
            "tokens_a_pass": round(steps / median(engine.passes[-rounds:]), 2) if engine.passes else 1.0,
            "first_call_s": round(first_encode_s + first_decode_s, 2),
        }


if __name__ == "__main__":
    main(
        rows, options, needs=("harken", "torch"), packages=("torch", "transformers"),
        settings=("steps", "rounds", "precision"),
    )  # fmt: skip

"""Tiny Whisper models with random weights, and every backend for them, by names such as ``"onnx-fp32"``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_files import random_weights
from harken.backends.numpy import NumpyBackend
from harken.contract import Backend, Floats
from harken.text import Tokenizer
from harken.text.vocabulary import bytes_to_unicode
from harken.types import Dims

_BYTES = [bytes_to_unicode(bytes([byte])) for byte in range(256)]
# The smallest vocabulary that can encode any text: special tokens, timestamps and, also in English, 99 languages.
TOKENIZER, ENGLISH_TOKENIZER = (Tokenizer(_BYTES, 1864, multilingual=each) for each in (True, False))
DIMS = Dims(
    n_mels=8,
    n_audio_ctx=24,
    n_audio_state=64,
    n_audio_head=2,
    n_audio_layer=2,
    n_vocab=TOKENIZER.n_vocab,
    n_text_ctx=48,
    n_text_state=64,
    n_text_head=2,
    n_text_layer=2,
)
N_WINDOWS = 4
TORCH_DEVICE = os.environ.get("HARKEN_TORCH_DEVICE", "cpu")
"""Device of the PyTorch backends in the contract suite: ``HARKEN_TORCH_DEVICE=cuda pytest tests/contract -k torch``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCase:
    """A backend under test, and how far its log-probabilities may be from the reference backend's."""

    tolerance: float  # in standard deviations of the reference logits
    reason: str  # source of the difference, and its measured size
    encoder: float | None = None  # the same of the encoder's output, where less is allowed


BY_DAY = ("onnx-fp32", "native-fp32", "native-int8", "torch-graphs")
"""The backends that take the whole contract suite; the others, the reference among them, take its smoke test."""
BACKENDS = {
    "numpy": BackendCase(tolerance=1e-6, reason="it is the reference"),
    "onnx-fp32": BackendCase(tolerance=2e-5, reason="sums in another order; measured 3e-6"),
    "onnx-bf16": BackendCase(tolerance=0.08, reason="8-bit mantissa in the encoder; measured 0.04"),
    "onnx-int8": BackendCase(tolerance=0.25, reason="8-bit weights and activations; measured 0.12"),
    "native-fp32": BackendCase(tolerance=2e-5, reason="sums in another order; measured 4e-6"),
    "native-int8": BackendCase(
        tolerance=0.25,
        encoder=0.1,
        reason="8-bit weights, activations and attention; measured 0.21, encoder 0.09",
    ),
    "torch-fp32": BackendCase(tolerance=2e-5, reason="sums in another order; measured 3e-6"),
    "torch-graphs": BackendCase(tolerance=2e-5, reason="fp32 with steps recorded and replayed as on CUDA"),
    "torch-fp16": BackendCase(tolerance=0.02, reason="11-bit mantissa throughout; measured 0.008"),
    "torch-bf16": BackendCase(tolerance=0.12, reason="8-bit mantissa throughout; measured 0.08"),
}


def make_weights(seed: int = 0, *, dims: Dims = DIMS) -> dict[str, Floats]:
    """Draw weights with peaked attention, and with logits some units apart."""
    weights = random_weights(dims, seed)
    sharp = {name: 3 for name in weights if name.endswith("query.weight") or name == "decoder.ln.weight"}
    return {
        name: np.float32(sharp.get(name, 1)) * values.astype(np.float32) for name, values in weights.items()
    }


def make_mel(n_windows: int = N_WINDOWS) -> Floats:
    """Draw windows of log-mel, all different."""
    return np.random.default_rng(1).standard_normal((n_windows, DIMS.n_mels, 2 * DIMS.n_audio_ctx), np.float32)


def make_assistant_weights() -> dict[str, Floats]:
    """Draw weights with the encoder of `make_weights` and another decoder."""
    encoder, decoder = make_weights(), make_weights(1)
    return {name: (encoder if name.startswith("encoder.") else decoder)[name] for name in encoder}


class StoredWeights(dict[str, Floats]):
    """Weights in memory, of a digest under which what is made of them is stored."""

    factors: Mapping[str, Floats] = {}

    def __init__(
        self, weights: Mapping[str, Floats], digest: str, check_unchanged: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(weights)
        self.digest, self.check_unchanged = digest, check_unchanged


def make_backend(
    name: str,
    cache: Path,
    weights: Mapping[str, Floats] | None = None,
    *,
    dims: Dims = DIMS,
    shares_encoder: bool = False,
    digest: str = "",
    check_unchanged: Callable[[], None] = lambda: None,
    **options: Any,
) -> Backend:
    """Build one of `BACKENDS` for the tiny model or other weights; graphs are stored under `cache`."""
    kind, _, precision = name.partition("-")
    digest = digest or ("tiny" if weights is None else f"assistant-{dims.n_text_layer}")
    weights = StoredWeights(make_weights(dims=dims) if weights is None else weights, digest, check_unchanged)
    dims = dims.without_encoder() if shares_encoder else dims
    match kind:
        case "numpy":
            return NumpyBackend(dims, weights, **options)
        case "onnx":
            pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
            from harken.backends.onnx import OnnxBackend

            return OnnxBackend(dims, weights, precision=precision, threads=1, cache=cache, **options)
        case "native":
            from harken.backends.native import NativeBackend

            options = {"threads": 1, **options}
            return NativeBackend(dims, weights, precision=precision, cache=cache, **options)
        case _:
            return make_torch_backend(precision, dims, weights, **options)


def make_torch_backend(precision: str, dims: Dims, weights: Mapping[str, Floats], **options: Any) -> Backend:
    """Build the PyTorch backend; "graphs" is float32 with its steps recorded and replayed, on a CPU by a fake."""
    from harken.backends.torch import TorchBackend

    if precision == "graphs":
        precision = "fp32"
        if TORCH_DEVICE == "cpu":
            from fakes.cuda_graphs import FakeGraphCapture

            options["graph_capture"] = FakeGraphCapture
    return TorchBackend(dims, weights, device=TORCH_DEVICE, precision=precision, threads=1, **options)

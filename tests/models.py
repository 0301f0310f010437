"""A tiny model with random weights, and every backend over it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoint_files import random_weights
from harken.backends.numpy import NumpyBackend
from harken.contract import Backend, Floats
from harken.text import Tokenizer
from harken.types import Dims

TOKENIZER = Tokenizer.bytes_only()
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
AUDIOS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One way to compute, and how far its log-probabilities may be from the oracle's.

    Parameters
    ----------
    precision : str or None
        Of the ONNX engine; None is the oracle itself.
    tolerance : float
        Largest difference, in standard deviations of the oracle's logits.
    reason : str
        Why it is that wide.
    """

    precision: str | None
    tolerance: float
    reason: str


ENGINES = {
    "numpy": Engine(precision=None, tolerance=1e-6, reason="it is the oracle"),
    "onnx-fp32": Engine(precision="fp32", tolerance=2e-5, reason="sums in another order; measured 3e-6"),
    "onnx-bf16": Engine(
        precision="bf16", tolerance=0.08, reason="8-bit mantissa in the encoder; measured 0.04"
    ),
    "onnx-int8": Engine(
        precision="int8", tolerance=0.25, reason="8-bit weights and activations; measured 0.10"
    ),
}


def make_weights(seed: int = 0) -> dict[str, Floats]:
    """Draw weights that make up their mind: peaked attention, and logits some units apart."""
    weights = random_weights(DIMS, seed)
    sharp = {name: 3 for name in weights if name.endswith("query.weight") or name == "decoder.ln.weight"}
    return {
        name: np.float32(sharp.get(name, 1)) * values.astype(np.float32) for name, values in weights.items()
    }


def make_mel(audios: int = AUDIOS, seed: int = 1) -> Floats:
    """Draw windows of log-mel, all different."""
    return np.random.default_rng(seed).standard_normal((audios, DIMS.n_mels, 2 * DIMS.n_audio_ctx), np.float32)


def make_backend(name: str, cache: Path) -> Backend:
    """Build one of `ENGINES` over the tiny model; its graphs are kept under `cache`."""
    from harken.backends.onnx import OnnxBackend

    precision = ENGINES[name].precision
    if precision is None:
        return NumpyBackend(DIMS, make_weights())
    return OnnxBackend(DIMS, make_weights(), "tiny", precision=precision, threads=1, cache=cache)

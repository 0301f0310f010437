"""Random weights with a published model's dimensions: what is computed costs the same, and nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harken.checkpoints import Weights
    from harken.types import Dims

# n_mels, encoder and decoder width, heads, encoder layers, decoder layers, vocabulary
SIZES = {
    "tiny": (80, 384, 6, 4, 4, 51865),
    "small": (80, 768, 12, 12, 12, 51865),
    "medium": (80, 1024, 16, 24, 24, 51865),
    "large-v3-turbo": (128, 1280, 20, 32, 4, 51866),
    "large-v3": (128, 1280, 20, 32, 32, 51866),
    "distil-large-v3": (128, 1280, 20, 32, 2, 51866),
}


def make_dims(name: str) -> Dims:
    """Return the dimensions of a published model."""
    from harken.types import Dims

    n_mels, state, heads, audio_layers, text_layers, vocabulary = SIZES[name]
    return Dims(
        n_mels=n_mels, n_audio_ctx=1500, n_audio_state=state, n_audio_head=heads, n_audio_layer=audio_layers,
        n_vocab=vocabulary, n_text_ctx=448, n_text_state=state, n_text_head=heads, n_text_layer=text_layers,
    )  # fmt: skip


N_DRAWN = 1_000_003
"""Random numbers that are drawn, and repeated in each matrix from another one on: a prime, so no two rows are equal."""


def draw_weights(dims: Dims) -> Weights:
    """Return random weights that keep activations near one, in half precision as published weights are."""
    import numpy as np

    from harken.checkpoints import Weights
    from harken.checkpoints.model_files import LazyTensor
    from harken.checkpoints.weight_shapes import expected_shapes

    drawn = np.random.default_rng(0).standard_normal(N_DRAWN, np.float32)
    values = {scale: (scale * drawn).astype(np.float16) for scale in (0.02, 0.1)}
    weights = {}
    for number, (name, shape) in enumerate(expected_shapes(dims).items()):
        weights[name] = np.resize(np.roll(values[0.02 if len(shape) > 1 else 0.1], 7919 * number), shape)
        if name.endswith(("ln.weight", "ln_post.weight")):
            weights[name] += np.float16(1)
    tensors = {
        name: LazyTensor(array.shape, "float16", lambda array=array: array)  # type: ignore[misc]
        for name, array in weights.items()
    }
    return Weights(Path("random"), tensors, files=())

"""The features of windows for the native decoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from harken.backends.encoding import EncodedWindows
from harken.backends.native.decoder import PackedWindow
from harken.backends.native.packing import GROUP
from harken.contract import Floats, SparsePositions


class NativeFeatures(EncodedWindows):
    """The encoder's output for some windows, and the packed keys and values of the cross-attention.

    Parameters
    ----------
    encoder_output : ndarray of shape (windows, positions, n_audio_state), float32
        Kept for decoders that reuse it.
    windows : sequence of PackedWindow
        Packed keys and values of each window.
    lengths : sequence of int, or None
        Number of positions of each window, where they differ.
    sparse_positions : SparsePositions, optional
        What the positions of all windows stand for.
    """

    def __init__(
        self,
        encoder_output: Floats,
        windows: Sequence[PackedWindow],
        lengths: Sequence[int] | None = None,
        sparse_positions: SparsePositions | None = None,
    ) -> None:
        super().__init__(encoder_output, lengths, sparse_positions)
        self.windows = windows
        self.key_bias = padded_key_bias(sparse_positions) if sparse_positions else None


@cache
def padded_key_bias(positions: SparsePositions) -> Floats:
    """Return the bias of the keys of some positions, rounded up to whole groups as the library reads it."""
    return np.pad(positions.key_bias, (0, -len(positions.counts) % GROUP))

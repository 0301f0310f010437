"""The features of windows for the native decoder."""

from __future__ import annotations

from collections.abc import Sequence

from harken.backends.native.decoder import PackedWindow
from harken.backends.onnx.session import EncodedWindows
from harken.contract import Floats


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
    """

    def __init__(
        self,
        encoder_output: Floats,
        windows: Sequence[PackedWindow],
        lengths: Sequence[int] | None = None,
    ) -> None:
        super().__init__(encoder_output, lengths)
        self.windows = windows

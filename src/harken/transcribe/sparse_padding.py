"""Sparse padding: of the padding of a window a part is encoded, and counts for all of it.

Whisper learned on windows of 30 s. Behind short audio most of a window is padding, which the encoder cannot do without:
windows that end earlier cost words (docs/decisions/fidelity.md). But positions of padding resemble one another, so
blocks of neighbours stand for those around them.
"""

from __future__ import annotations

from dataclasses import dataclass

from harken.contract import Floats, SparsePositions
from harken.types import FRAMES_PER_POSITION


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingSample:
    """The part of the padding that is encoded, in positions.

    Parameters
    ----------
    block, period : int
        Of every `period` positions, `block` neighbours in their middle are encoded. Neighbours, since some heads attend
        to the positions beside their own.
    min_dense : int
        Positions behind the audio that are all encoded.
    dense_step : int
        The positions that are all encoded end at a multiple of this: windows with the same are decoded together.
    max_share : float
        Where a greater share of the window would be encoded, all of it is.
    """

    block: int = 24
    period: int = 64
    min_dense: int = 16
    dense_step: int = 50
    max_share: float = 2 / 3

    def positions(self, content_frames: int, window_positions: int) -> SparsePositions | None:
        """Return the positions to encode of a window that holds so many frames of audio; None is all."""
        content_positions = -(-content_frames // FRAMES_PER_POSITION)
        dense = -(-(content_positions + self.min_dense) // self.dense_step) * self.dense_step
        numbers, counts = [*range(dense)], [1.0] * dense
        for start in range(dense, window_positions, self.period):
            period = min(self.period, window_positions - start)
            block = max(1, period * self.block // self.period)
            first = start + (period - block) // 2
            numbers += range(first, first + block)
            counts += [period / block] * block
        if len(numbers) > self.max_share * window_positions:
            return None
        return SparsePositions(tuple(numbers), tuple(counts))


def frames_to_encode(mel: Floats, positions: SparsePositions | None) -> Floats:
    """Return the frames of the positions to encode of windows that end in padding.

    Parameters
    ----------
    mel : ndarray of shape (windows, n_mels, window_frames), float32
        Padding is constant, so its first frames are those of any of its positions.
    positions : SparsePositions or None
        None is all.
    """
    return mel if positions is None else mel[:, :, : FRAMES_PER_POSITION * len(positions.numbers)]

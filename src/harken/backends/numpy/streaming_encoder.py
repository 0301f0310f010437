"""The streaming encoder of the reference backend: one pass of the offline encoder under an attention mask.

The state is the log-mel of all chunks. The chunks are concatenated, so that frames of look-ahead occur once for each
time that they were encoded. Each position attends to its own chunk and to the final positions of earlier chunks within
the history (the rearranged sequence of Shi et al. 2021, "Emformer", section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harken.backends.numpy import model
from harken.backends.numpy.model import Mask, Weights
from harken.contract import Floats
from harken.types import Dims


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The frames that one call encodes.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, 2 W or 2 W + 1), float32
    first_position : int
        Position of the first two frames in the stream.
    final_positions : int
        Number of positions that are final, from the first on.
    """

    mel: Floats
    first_position: int
    final_positions: int

    @property
    def positions(self) -> int:
        return int(self.mel.shape[1]) // 2


class NumpyEncoderState:
    """`harken.contract.StreamingEncoderState` whose only state is the chunks that it was given."""

    def __init__(self, weights: Weights, dims: Dims, history_frames: int) -> None:
        assert history_frames % 2 == 0, "a history is an even number of frames"
        self._weights, self._dims, self._history_positions = weights, dims, history_frames // 2
        self._chunks: list[EncodedChunk] = []

    @property
    def final_positions(self) -> int:
        return sum(chunk.final_positions for chunk in self._chunks)

    @property
    def positions(self) -> int:
        return self._chunks[-1].first_position + self._chunks[-1].positions if self._chunks else 0

    def append_chunk(self, mel: Floats, final_frames: int) -> None:
        """Append a chunk of shape (n_mels, frames), of which the first `final_frames` are final."""
        chunk = EncodedChunk(mel.copy(), self.final_positions, final_frames // 2)
        assert final_frames in range(0, mel.shape[1] + 1, 2), "final frames: even, at most those of the chunk"
        assert chunk.first_position + chunk.positions <= self._dims.n_audio_ctx, "the stream is too long"
        self._chunks.append(chunk)

    def encode(self) -> Floats:
        """Encode all positions, those of the look-ahead last, shape (positions, n_audio_state)."""
        chunks = self._chunks
        x = model.encoder_blocks(
            embed_chunks(chunks, self._weights),
            self._weights,
            self._dims,
            attention_mask(chunks, self._history_positions),
        )
        in_last_chunk = np.arange(len(x)) >= len(x) - chunks[-1].positions
        y: Floats = x[final_position_mask(chunks) | in_last_chunk]
        return y


def embed_chunks(chunks: Sequence[EncodedChunk], weights: Weights) -> Floats:
    """Convolve each chunk behind the final frames before it, and concatenate the results."""
    embeddings, final_mel = [], chunks[0].mel[:, :0]
    for chunk in chunks:
        mel_with_context = np.concatenate([final_mel, chunk.mel], axis=1)
        embeddings.append(model.stem(mel_with_context, weights)[chunk.first_position :])
        final_mel = mel_with_context[:, : 2 * (chunk.first_position + chunk.final_positions)]
    return np.concatenate(embeddings)


def attention_mask(chunks: Sequence[EncodedChunk], history_positions: int) -> Mask:
    """Compute which positions each position attends to, over the positions of all chunks concatenated."""
    chunk_index = np.repeat(np.arange(len(chunks)), [chunk.positions for chunk in chunks])
    position = np.concatenate([chunk.first_position + np.arange(chunk.positions) for chunk in chunks])
    chunk_start = np.array([chunk.first_position for chunk in chunks])[chunk_index]
    in_history = (
        final_position_mask(chunks)
        & (chunk_index < chunk_index[:, None])
        & (position >= chunk_start[:, None] - history_positions)
    )
    return np.asarray(in_history | (chunk_index == chunk_index[:, None]), np.bool_)


def final_position_mask(chunks: Sequence[EncodedChunk]) -> Mask:
    """Compute which positions of all chunks concatenated are final, shape (positions,)."""
    return np.concatenate([np.arange(chunk.positions) < chunk.final_positions for chunk in chunks])

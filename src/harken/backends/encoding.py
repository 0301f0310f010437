"""Parts that backends share: checks of callers, rows of greedy decoding, and the state of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from harken import audio
from harken.audio.mel import log_mel, normalize, pad_or_trim
from harken.contract import Features, Floats, Ints, PickedSoFar, SparsePositions, StreamingEncoderState
from harken.types import FRAMES_PER_POSITION, LEFT_CONTEXT_FRAMES, Dims

SHORT_SPEECH = Path(audio.__file__).parent / "data" / "short_speech.npz"
NO_ENCODER = "this backend has no encoder: use reuse_encoder_output"
OTHER_FEATURES = "features come from a backend of the same kind"
NO_TOKEN = -1
"""In place of a token or timestamp that there is not."""

Own = TypeVar("Own")


def own_features(features: Features, features_type: type[Own]) -> Own:
    """Return the features; they may not come from a backend of another kind."""
    assert isinstance(features, features_type), OTHER_FEATURES
    return features


def own_states(states: Sequence[StreamingEncoderState], state_type: type[Own]) -> list[Own]:
    """Return the states; none may have been opened by a backend of another kind."""
    own: list[Own] = [state for state in states if isinstance(state, state_type)]
    assert len(own) == len(states), "encoder states come from this backend's own open_encoder"
    return own


def grammar_state(row: PickedSoFar, timestamp_begin: int | None) -> tuple[int, int, int]:
    """Return what the grammar of timestamps asks of a row: the last token but one, the last timestamp, `speech_end`."""
    timestamps = (
        token for token in reversed(row.tokens) if timestamp_begin is not None and token >= timestamp_begin
    )
    speech_end = NO_TOKEN if row.speech_end is None else row.speech_end
    return (NO_TOKEN, *row.tokens)[-2], next(timestamps, NO_TOKEN), speech_end


def columns_of(tokens: Ints, token_ids: Ints | None) -> Ints:
    """Return the columns of those of some tokens that have one, given the ascending ids of all columns or None."""
    if token_ids is None:
        return tokens
    columns: Ints = token_ids.searchsorted(tokens)
    covered: Ints = columns[token_ids.take(columns, mode="clip") == tokens]
    return covered


@cache
def short_speech_window(dims: Dims) -> Floats:
    """Return the log-mel of a window with 0.9 s of speech, shape (n_mels, window_frames), whose padding is frozen.

    With longer speech positions that are frozen would be speech, and a window of silence is no good: its padding
    differs from that after speech (docs/experiments/fidelity.md).
    """
    with np.load(SHORT_SPEECH) as archive:
        samples = archive["samples"].astype(np.float32) / 32768
    mel = log_mel(samples, dims.n_mels)
    return pad_or_trim(normalize(mel, float(mel.max())), FRAMES_PER_POSITION * dims.n_audio_ctx)


class StreamState:
    """The place in a stream, and the frames behind it that the convolutions read again with the next chunk.

    Parameters
    ----------
    n_mels : int

    Attributes
    ----------
    final_positions : int
        As in `harken.contract.StreamingEncoderState`.
    positions : int
        With those of the look-ahead.
    """

    def __init__(self, n_mels: int) -> None:
        self.final_positions = self.positions = 0
        self._left_context = np.zeros((n_mels, LEFT_CONTEXT_FRAMES), np.float32)

    def with_context(self, mel: Floats) -> Floats:
        """Return the next 2 W + 1 frames, or 2 W at the end of a stream, with those around: shape (n_mels, 2 W + 3)."""
        missing = 1 - mel.shape[1] % FRAMES_PER_POSITION
        return np.concatenate([self._left_context, np.pad(mel, ((0, 0), (0, missing)))], axis=1)

    def advance(self, mel_with_context: Floats, final_positions: int) -> None:
        """Go on behind the first positions of a chunk, which are final; the others are look-ahead."""
        chunk_positions = mel_with_context.shape[1] // FRAMES_PER_POSITION - 1
        first = FRAMES_PER_POSITION * final_positions
        self._left_context = mel_with_context[:, first : first + LEFT_CONTEXT_FRAMES].copy()
        self.positions = self.final_positions + chunk_positions
        self.final_positions += final_positions


def write_at(buffer: Floats, at: int, new: Floats) -> Floats:
    """Write from position `at` on, along the last axis but one; return the buffer, or a larger copy of it."""
    end = at + new.shape[-2]
    buffer = with_room(buffer, at, end)
    buffer[..., at:end, :] = new
    return buffer


def with_room(buffer: Floats, kept: int, needed: int) -> Floats:
    """Return a buffer with room for so many positions: itself, or a larger copy of the first `kept`."""
    if needed <= buffer.shape[-2]:
        return buffer
    larger = np.empty((*buffer.shape[:-2], 2 * needed, buffer.shape[-1]), np.float32)
    larger[..., :kept, :] = buffer[..., :kept, :]
    return larger


class EncodedWindows(ABC):
    """Features of a CPU engine, whose encoder output a decoder of either can reuse.

    Attributes
    ----------
    sparse_positions : SparsePositions or None
        Those of all windows.
    """

    sparse_positions: SparsePositions | None

    @abstractmethod
    def outputs(self) -> list[Floats]:
        """Return the encoder's output for each window, shape (positions, n_audio_state)."""


def encoded_windows(features: Features) -> EncodedWindows:
    """Return the features; they may not come from a backend that is no CPU engine."""
    assert isinstance(features, EncodedWindows), OTHER_FEATURES
    return features


def stack_padded(arrays: Sequence[Floats]) -> Floats:
    """Stack arrays of some positions each, along the last axis but one, of which zeros follow the shorter ones."""
    longest = max(array.shape[-2] for array in arrays)
    return np.stack(
        [
            np.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, longest - array.shape[-2]), (0, 0)])
            for array in arrays
        ]
    )

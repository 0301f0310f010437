"""Parts that backends share: checks of callers, rows of greedy decoding, and the state of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from harken import audio
from harken.audio.mel import log_mel, normalize, pad_or_trim
from harken.contract import Features, Floats, Ints, PickedSoFar, StreamingEncoderState
from harken.types import FRAMES_PER_POSITION, LEFT_CONTEXT_FRAMES, Dims

SHORT_SPEECH = Path(audio.__file__).parent / "data" / "short_speech.npz"
NO_ENCODER = "this backend has no encoder: use reuse_encoder_output"
OTHER_FEATURES = "features come from a backend of the same kind"
BLOCKS = 12
"""Blocks of neighbours in a window, each of 2.5 s."""
UNUSUAL = 1 / 24
"""Share of the positions that are groups of their own: 62 in a window."""
NEVER_FROZEN = 1 / 15
"""Share of a window that is always encoded: speech, and the positions behind it."""
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


@dataclass(frozen=True, slots=True, eq=False)
class FrozenPadding:
    """The frozen positions that stand for the padding behind the positions of a window that are encoded.

    Each has the mean keys, values and encoder output of a group of the positions of `short_speech_window`; the
    logarithm of the number of positions that it stands for is added to the scores of its key, in the encoder and in the
    cross-attention.

    Attributes
    ----------
    encoded : int
        Number of positions that are encoded; the frozen ones follow.
    counts : ndarray of int
        Number of positions that each frozen one stands for.
    """

    encoded: int
    counts: Ints

    @classmethod
    def behind(cls, encoded: int, groups: Ints) -> FrozenPadding:
        """Make that of a window, given the groups of `padding_groups`: its frozen positions are the last of these."""
        counts = np.bincount(groups[encoded:])
        return cls(encoded, counts[counts > 0])

    @property
    def key_bias(self) -> Floats:
        """Bias that is added to the scores of each position's key, float32."""
        return np.concatenate([np.zeros(self.encoded), np.log(self.counts)]).astype(np.float32)


def count_groups(positions: int) -> int:
    """Return the number of groups of `padding_groups`."""
    return len(range(0, positions, _block_length(positions))) + int(positions * UNUSUAL)


def _block_length(positions: int) -> int:
    return -(-positions // BLOCKS)


def padding_groups(arrays: Iterable[Floats]) -> Ints:
    """Divide the positions of `short_speech_window` into groups.

    Neighbours in the padding are much alike, so their mean stands for them. But a few positions are like no other, and
    many heads attend to them (Darcet et al. 2024, "Vision transformers need registers"); which ones depends on the
    model. The most unusual are groups of their own.

    Parameters
    ----------
    arrays : iterable of ndarray of shape (positions, channels), float32
        What is known of each position: its keys and its values in each layer, and its encoder output.

    Returns
    -------
    ndarray of shape (positions,), int
        The group of each position. Groups are numbered in the order of their last positions.
    """
    unusualness = np.sum([*map(_distances, arrays)], axis=0)
    positions = len(unusualness)
    groups = np.arange(positions) // _block_length(positions)
    first, n_unusual = int(positions * NEVER_FROZEN), int(positions * UNUSUAL)
    unusual = first + np.argsort(-unusualness[first:], kind="stable")[:n_unusual]
    groups[unusual] = positions + unusual
    _, last, members = np.unique(groups[::-1], return_index=True, return_inverse=True)
    by_last: Ints = np.argsort(np.argsort(-last))
    return by_last[members[::-1]]


def _distances(rows: Floats) -> Floats:
    """Return the distance of each row from the median, in medians of the distances."""
    # Sums over the first axis are formed in its order, hence the same on every processor.
    columns = np.ascontiguousarray(rows.T)
    distances = np.sqrt(np.square(columns - np.median(columns, axis=1, keepdims=True)).sum(axis=0))
    scaled: Floats = distances / np.median(distances)
    return scaled


def pool(rows: Floats, groups: Ints) -> Floats:
    """Return the mean of each group of positions, which lie along the last axis but one.

    Sums are formed in the order of the positions, hence the same on every processor.
    """
    counts = np.bincount(groups).astype(np.float32)
    sums = np.zeros((*rows.shape[:-2], len(counts), rows.shape[-1]), np.float32)
    for position, group in enumerate(groups):
        sums[..., group, :] += rows[..., position, :]
    sums /= counts[:, None]
    return sums


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
    padding : FrozenPadding or None
        What stands for the padding of all windows.
    """

    padding: FrozenPadding | None

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

"""Segments of the decoded tokens of one window, and the start of the next window.

Source: openai/whisper, transcribe.py, transcribe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSegment:
    """One segment of a window, with its tokens; times in positions of 0.02 s from the start of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]


def split_at_timestamps(
    tokens: Sequence[int], timestamp_begin: int, window_positions: float, *, self_contained: bool = False
) -> tuple[list[TokenSegment], float]:
    """Split the tokens of a window into segments at pairs of timestamps.

    Parameters
    ----------
    tokens : sequence of int
        Decoded tokens, without the end of text.
    timestamp_begin : int
        Id of <|0.00|>.
    window_positions : float
        Length of the window's part of the recording, in positions of 0.02 s.
    self_contained : bool
        Whether speech in the window also ends in it, as in one that was packed between silences.

    Returns
    -------
    token_segments : list of TokenSegment
    advance : float
        Positions from the start of this window to that of the next; above 0.

    Notes
    -----
    An unfinished segment behind a pair of timestamps is left to the next window, which begins at the pair; in a
    self-contained window it ends with the window. A window that ends with a single timestamp has no unfinished segment.
    """

    def to_position(token: int) -> int:
        return token - timestamp_begin

    is_timestamp = [token >= timestamp_begin for token in tokens]
    slice_ends = [i + 1 for i, (a, b) in enumerate(pairwise(is_timestamp)) if a and b]
    if not slice_ends:
        timestamp_positions = [to_position(token) for token in tokens if token >= timestamp_begin]
        end = (
            timestamp_positions[-1] if timestamp_positions and timestamp_positions[-1] > 0 else window_positions
        )
        return [TokenSegment(start=0, end=end, tokens=tuple(tokens))], window_positions
    ends_with_single = single_timestamp_ending(tokens, timestamp_begin)
    if ends_with_single:
        slice_ends.append(len(tokens))
    token_slices = [tuple(tokens[a:b]) for a, b in zip([0, *slice_ends], slice_ends, strict=False)]
    token_segments = [
        TokenSegment(start=to_position(part[0]), end=to_position(part[-1]), tokens=part)
        for part in token_slices
    ]
    remaining_tokens = tuple(tokens[slice_ends[-1] :])
    if self_contained and any(token < timestamp_begin for token in remaining_tokens):
        start = to_position(remaining_tokens[0])
        return [
            *token_segments,
            TokenSegment(start=start, end=max(window_positions, start + 1), tokens=remaining_tokens),
        ], window_positions
    advance = 0 if ends_with_single else to_position(tokens[slice_ends[-1] - 1])
    return token_segments, advance or window_positions


def single_timestamp_ending(tokens: Sequence[int], timestamp_begin: int) -> bool:
    """Return whether the last token is a timestamp and the one before it is not."""
    return [token >= timestamp_begin for token in tokens[-2:]] == [False, True]


def shift_timestamps(tokens: Sequence[int], timestamp_begin: int, n_positions: int) -> tuple[int, ...]:
    """Return the tokens with timestamps of a window that begins a number of positions later."""
    return tuple(
        max(token - n_positions, timestamp_begin) if token >= timestamp_begin else token for token in tokens
    )

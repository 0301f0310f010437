"""How much of a hypothesis is committed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from harken.contract import Ints
from harken.decoding.candidate_generator import common_prefix_length
from harken.streaming.config import StreamingConfig
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

MAX_TOKEN_POSITIONS = FRAMES_PER_SECOND // FRAMES_PER_POSITION // 2
"""Positions, half a second: what a token listens to is seldom further from its end."""


def stable_prefix_length(
    tokens: Sequence[int],
    attended_positions: Ints,
    word_lengths: Sequence[int],
    previous_hypotheses: Sequence[Sequence[int]],
    encoded_positions: int,
    config: StreamingConfig,
) -> int:
    """How many tokens of a hypothesis will not change any more.

    Whole words that end at least `hold_frames` before the end of the sound, and which the last hypotheses before this
    one have too. A word ends where the next one begins, or half a second behind its last token if there is a pause.

    Parameters
    ----------
    tokens : sequence of int
        Behind what is committed already.
    places : ndarray of shape (len(tokens) + 1,), int64
        Position that each of them listens to, and what would come next, in rising order.
    lengths : sequence of int
        How many tokens each word has.
    earlier : sequence of sequence of int
        Hypotheses before this one, behind the same committed text, the last one first.
    positions : int
        How many positions have been heard.
    setting : Setting
    """
    if len(previous_hypotheses) < config.local_agreement - 1:
        return 0
    agreed = min(
        [
            len(tokens),
            *(
                common_prefix_length(tokens, hypothesis)
                for hypothesis in previous_hypotheses[: config.local_agreement - 1]
            ),
        ]
    )
    last_stable_position = encoded_positions - config.commit_delay_frames // FRAMES_PER_POSITION
    ends = [end for end in accumulate(word_lengths) if end <= agreed]
    return max(
        (
            end
            for end in ends
            if token_end(attended_positions[end - 1], attended_positions[end]) <= last_stable_position
        ),
        default=0,
    )


def token_end(position: int, next_position: int) -> int:
    """Where a token ends that listens to one position, and the one behind it to another."""
    return min(next_position, position + MAX_TOKEN_POSITIONS)

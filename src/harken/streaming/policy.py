"""How much of a hypothesis is committed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from harken.contract import Ints
from harken.decoding.drafts import common
from harken.streaming.setting import Setting
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP

LONGEST_TOKEN = FRAMES_PER_SECOND // FRAMES_PER_STEP // 2
"""Positions, half a second: what a token listens to is seldom further from its end."""


def settled(
    tokens: Sequence[int],
    places: Ints,
    lengths: Sequence[int],
    earlier: Sequence[Sequence[int]],
    positions: int,
    setting: Setting,
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
    if len(earlier) < setting.agreement - 1:
        return 0
    agreed = min([len(tokens), *(common(tokens, its) for its in earlier[: setting.agreement - 1])])
    limit = positions - setting.hold_frames // FRAMES_PER_STEP
    ends = [end for end in accumulate(lengths) if end <= agreed]
    return max((end for end in ends if ended(places[end - 1], places[end]) <= limit), default=0)


def ended(place: int, next_place: int) -> int:
    """Where a token ends that listens to one position, and the one behind it to another."""
    return min(next_place, place + LONGEST_TOKEN)

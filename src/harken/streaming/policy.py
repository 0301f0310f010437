"""How much of a hypothesis is committed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from harken.contract import Ints
from harken.decoding.drafts import common
from harken.streaming.setting import Setting
from harken.types import FRAMES_PER_STEP


def settled(
    tokens: Sequence[int],
    places: Ints,
    lengths: Sequence[int],
    earlier: Sequence[Sequence[int]],
    positions: int,
    setting: Setting,
) -> int:
    """How many tokens of a hypothesis will not change any more.

    Whole words, behind each of which the next one begins at least `hold_frames` before the end of the sound, and which
    the last hypotheses before this one have too.

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
    ends = [0, *accumulate(lengths)]
    return max((end for _, end in pairwise(ends) if end <= agreed and places[end] <= limit), default=0)

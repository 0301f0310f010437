"""Cut the tokens of one window into segments, and say where the next window begins.

Source: openai/whisper, transcribe.py, transcribe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One segment in the steps of timestamps, counted from the start of its window."""

    start: float
    end: float
    tokens: tuple[int, ...]


def cut(
    tokens: Sequence[int], timestamp_begin: int, size: float, *, whole: bool = False
) -> tuple[list[Cut], float]:
    """Cut at pairs of timestamps.

    Parameters
    ----------
    tokens : sequence of int
        As decoded, without the end of text.
    timestamp_begin : int
        Id of <|0.00|>.
    size : float
        Length of what the window holds of the recording, in steps of timestamps.
    whole : bool
        Whether what is said in the window ends in it, as in one that was packed between silences.

    Returns
    -------
    cuts : list of Cut
    advance : float
        How far to go to the next window, in steps; above 0.

    Notes
    -----
    After a pair of timestamps an unfinished segment is left to the next window, which begins at the pair, or ends with
    a window that is whole. A window that ends with a single timestamp has nothing behind it.
    """

    def step(token: int) -> int:
        return token - timestamp_begin

    times = [token >= timestamp_begin for token in tokens]
    bounds = [i + 1 for i, (a, b) in enumerate(pairwise(times)) if a and b]
    if not bounds:
        stamps = [step(token) for token in tokens if token >= timestamp_begin]
        end = stamps[-1] if stamps and stamps[-1] > 0 else size
        return [Cut(start=0, end=end, tokens=tuple(tokens))], size
    alone = ends_alone(tokens, timestamp_begin)
    if alone:
        bounds.append(len(tokens))
    parts = [tuple(tokens[a:b]) for a, b in zip([0, *bounds], bounds, strict=False)]
    cuts = [Cut(start=step(part[0]), end=step(part[-1]), tokens=part) for part in parts]
    unfinished = tuple(tokens[bounds[-1] :])
    if whole and any(token < timestamp_begin for token in unfinished):
        start = step(unfinished[0])
        return [*cuts, Cut(start=start, end=max(size, start + 1), tokens=unfinished)], size
    advance = 0 if alone else step(tokens[bounds[-1] - 1])
    return cuts, advance or size


def ends_alone(tokens: Sequence[int], timestamp_begin: int) -> bool:
    """Whether the last token is a timestamp behind text."""
    return [token >= timestamp_begin for token in tokens[-2:]] == [False, True]


def earlier(tokens: Sequence[int], timestamp_begin: int, steps: int) -> tuple[int, ...]:
    """Tokens as they would be in a window that begins so many steps later."""
    return tuple(max(token - steps, timestamp_begin) if token >= timestamp_begin else token for token in tokens)

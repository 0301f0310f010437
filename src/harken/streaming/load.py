"""When a machine falls behind the sound: how far, and what is left out until it has caught up.

Sound arrives on time, whatever the machine does; work waits until the work before it is done. So its end is
known from two numbers alone, when its samples had arrived and how long it took, and nobody looks at a clock::

    end = max(arrival, end of the work before) + computation
    lag = end - arrival

Nothing that was said is ever left out, and text that was committed stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harken.streaming.setting import Setting
from harken.types import FRAMES_PER_SECOND

LATE_IN_A_ROW = 2
"""Pieces of work that have to be more than a hop late, one after another, before less is done."""
CALM_S = 5.0
"""How long everything has to be early before more is done again."""
CALM_HOPS = 0.5
"""What early is: a lag of no more than so much of the hop that there would be then."""

LEAST_WINDOW_FRAMES = 100
LEAST_LOOK_AHEAD_FRAMES = 50
"""Without any, a third more words are wrong; half a second of it brings most of that back."""
_LONGEST_WINDOW = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How much is done.

    Parameters
    ----------
    detail : str
        In words.
    hops : int
        Hops of the setting from one update to the next.
    shortest_window : bool
        Whether windows are as short as they may be.
    exact_finals : bool
        Whether an utterance is heard again as a whole, where that was asked for.
    """

    detail: str
    hops: int = 1
    shortest_window: bool = False
    exact_finals: bool = True


LEVELS = (
    Level(detail="all that was asked for"),
    Level(detail="half as many updates", hops=2),
    Level(detail="half as many updates, of the shortest windows", hops=2, shortest_window=True),
    Level(
        detail="half as many updates, of the shortest windows, and utterances are not heard again as a whole",
        hops=2,
        shortest_window=True,
        exact_finals=False,
    ),
)
"""What is left out, and in which order: first what is only seen in passing, last what stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """Less is done from now on, or more again; as in `harken.streaming.events.LoadChanged`."""

    level: int
    lag_s: float
    detail: str


def apply(level: int, setting: Setting) -> Setting:
    """What a setting comes to at one of the `LEVELS`.

    Windows keep half a second of look-ahead, or as much as the setting has if that is less.
    """
    if level == 0:
        return setting
    look_ahead = min(LEAST_LOOK_AHEAD_FRAMES, setting.look_ahead_frames)
    hop = min(LEVELS[level].hops * setting.hop_frames, _LONGEST_WINDOW - look_ahead)
    shortest = max(min(LEAST_WINDOW_FRAMES, setting.window_frames), hop + look_ahead)
    window = max(setting.window_frames, shortest)
    if LEVELS[level].shortest_window:
        window = min(window, shortest)
    return replace(setting, window_frames=window, hop_frames=hop)


class Load:
    """How far one stream is behind, and the level that follows from it.

    Where computation takes no time, as with a clock that stands still, nothing ever changes.

    Parameters
    ----------
    setting : Setting
    most : int
        The level behind which there is nothing to leave out: 2 where finals are not exact anyway.

    Attributes
    ----------
    level : int
        One of the `LEVELS`.
    lag_s : float
        How far behind the last piece of work was done.
    """

    def __init__(self, setting: Setting, *, most: int = len(LEVELS) - 1) -> None:
        self.level = 0
        self.lag_s = 0.0
        self._hops_s = [apply(level, setting).hop_frames / FRAMES_PER_SECOND for level in range(most + 1)]
        self._end_s = -math.inf
        self._late = 0
        self._calm_since_s: float | None = None

    def book(self, arrival_s: float, compute_s: float) -> LevelChange | None:
        """Book a piece of work, in the order in which it was done.

        Parameters
        ----------
        arrival_s : float
            When the last sample that it needs arrives: its number divided by 16000.
        compute_s : float
            How long it took.

        Returns
        -------
        LevelChange or None
            If the next piece is to be done at another level.
        """
        self._end_s = max(arrival_s, self._end_s) + compute_s
        self.lag_s = self._end_s - arrival_s
        self._late = self._late + 1 if self.lag_s > self._hops_s[self.level] else 0
        self._mind_calm(arrival_s)
        if self._late >= LATE_IN_A_ROW and self.level + 1 < len(self._hops_s):
            return self._change(+1)
        if self._calm_since_s is not None and arrival_s - self._calm_since_s >= CALM_S:
            return self._change(-1)
        return None

    def _mind_calm(self, arrival_s: float) -> None:
        """Remember since when it would have been early at the level before this one."""
        calm = self.level > 0 and self.lag_s <= CALM_HOPS * self._hops_s[self.level - 1]
        if not calm:
            self._calm_since_s = None
        elif self._calm_since_s is None:
            self._calm_since_s = arrival_s

    def _change(self, step: int) -> LevelChange:
        self.level += step
        self._late, self._calm_since_s = 0, None
        return LevelChange(level=self.level, lag_s=self.lag_s, detail=LEVELS[self.level].detail)

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

from harken.streaming.config import StreamingConfig
from harken.types import FRAMES_PER_SECOND

LATE_UPDATES_TO_SHED = 2
"""Pieces of work that have to be more than a hop late, one after another, before less is done."""
RECOVERY_S = 5.0
"""How long everything has to be early before more is done again."""
RECOVERY_LAG_HOPS = 0.5
"""What early is: a lag of no more than so much of the hop that there would be then."""

MIN_WINDOW_FRAMES = 100
MIN_LOOK_AHEAD_FRAMES = 50
"""Without any, a third more words are wrong; half a second of it brings most of that back."""
_MAX_WINDOW_FRAMES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevel:
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
    hop_multiple: int = 1
    shortest_window: bool = False
    exact_finals: bool = True


LOAD_LEVELS = (
    LoadLevel(detail="all that was asked for"),
    LoadLevel(detail="half as many updates", hop_multiple=2),
    LoadLevel(detail="half as many updates, of the shortest windows", hop_multiple=2, shortest_window=True),
    LoadLevel(
        detail="half as many updates, of the shortest windows, and utterances are not heard again as a whole",
        hop_multiple=2,
        shortest_window=True,
        exact_finals=False,
    ),
)
"""What is left out, and in which order: first what is only seen in passing, last what stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevelChange:
    """Less is done from now on, or more again; as in `harken.streaming.events.LoadChanged`."""

    level: int
    lag_s: float
    detail: str


def apply_load_level(level: int, config: StreamingConfig) -> StreamingConfig:
    """What a setting comes to at one of the `LEVELS`.

    Windows keep half a second of look-ahead, or as much as the setting has if that is less.
    """
    if level == 0:
        return config
    look_ahead = min(MIN_LOOK_AHEAD_FRAMES, config.look_ahead_frames)
    hop = min(LOAD_LEVELS[level].hop_multiple * config.hop_frames, _MAX_WINDOW_FRAMES - look_ahead)
    min_window = max(min(MIN_WINDOW_FRAMES, config.window_frames), hop + look_ahead)
    window = max(config.window_frames, min_window)
    if LOAD_LEVELS[level].shortest_window:
        window = min(window, min_window)
    return replace(config, window_frames=window, hop_frames=hop)


class LoadMonitor:
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

    def __init__(self, config: StreamingConfig, *, max_level: int = len(LOAD_LEVELS) - 1) -> None:
        self.level = 0
        self.lag_s = 0.0
        self._hops_s = [
            apply_load_level(level, config).hop_frames / FRAMES_PER_SECOND for level in range(max_level + 1)
        ]
        self._finished_s = -math.inf
        self._consecutive_late = 0
        self._recovering_since_s: float | None = None

    def record(self, arrival_s: float, compute_s: float) -> LoadLevelChange | None:
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
        self._finished_s = max(arrival_s, self._finished_s) + compute_s
        self.lag_s = self._finished_s - arrival_s
        self._consecutive_late = self._consecutive_late + 1 if self.lag_s > self._hops_s[self.level] else 0
        self._track_recovery(arrival_s)
        if self._consecutive_late >= LATE_UPDATES_TO_SHED and self.level + 1 < len(self._hops_s):
            return self._change_level(+1)
        if self._recovering_since_s is not None and arrival_s - self._recovering_since_s >= RECOVERY_S:
            return self._change_level(-1)
        return None

    def _track_recovery(self, arrival_s: float) -> None:
        """Remember since when it would have been early at the level before this one."""
        recovering = self.level > 0 and self.lag_s <= RECOVERY_LAG_HOPS * self._hops_s[self.level - 1]
        if not recovering:
            self._recovering_since_s = None
        elif self._recovering_since_s is None:
            self._recovering_since_s = arrival_s

    def _change_level(self, step: int) -> LoadLevelChange:
        self.level += step
        self._consecutive_late, self._recovering_since_s = 0, None
        return LoadLevelChange(level=self.level, lag_s=self.lag_s, detail=LOAD_LEVELS[self.level].detail)

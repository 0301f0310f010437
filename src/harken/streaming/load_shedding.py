"""Load shedding: the lag of a machine behind the audio, and the work that is left out until it has caught up.

Audio arrives in real time, whatever the machine does; each request waits for the one before. So its end follows from
the arrival of its last sample and its computing time alone, without a clock::

    end = max(arrival, end of the request before) + computing time
    lag = end - arrival

All speech is transcribed at every level, and committed text stays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from harken.streaming.config import MAX_WINDOW_FRAMES, StreamingConfig
from harken.types import FRAMES_PER_SECOND

LATE_UPDATES_TO_SHED = 2
"""Consecutive requests more than a hop late before the level rises."""
CATCH_UP_S = 3.0
"""Seconds for which requests may be late if the lag falls, as after the final pass over a long utterance."""
RECOVERY_S = 5.0
"""Seconds that every request must be early before the level falls."""
RECOVERY_LAG_HOPS = 0.5
"""Greatest lag that counts as early, in hops of the level below."""
FIRST_REPORTED_LAG_S = 10.0
"""Lag that is reported at the highest level, where no more work can be left out; then each time that it has doubled."""

MIN_WINDOW_FRAMES = 100
MIN_LOOK_AHEAD_FRAMES = 50
"""Without look-ahead a third more words are wrong; half a second of it avoids most of these errors."""


LOAD_LEVELS = (
    "all that was asked for",
    "half as many updates",
    "half as many updates, of the shortest windows",
    "half as many updates, of the shortest windows, and utterances are not transcribed again as a whole",
)
"""What is done at each level, from full work to least; interim updates are reduced first, the final pass last."""
SHORTEST_WINDOWS, NO_EXACT_FINALS = 2, 3
"""Levels from which on windows are as short as allowed, and utterances get no final pass."""


def highest_level(finals: str) -> int:
    """Return the highest level to use: the last one leaves out exact finals, where there are any."""
    return NO_EXACT_FINALS - 1 if finals == "streamed" else NO_EXACT_FINALS


@cache
def apply_load_level(level: int, config: StreamingConfig) -> StreamingConfig:
    """Return a configuration as it is at one of the `LOAD_LEVELS`.

    Windows keep half a second of look-ahead, or that of the configuration if it is less.
    """
    if level == 0:
        return config
    look_ahead = min(MIN_LOOK_AHEAD_FRAMES, config.look_ahead_frames)
    hop = min(2 * config.hop_frames, MAX_WINDOW_FRAMES - look_ahead)
    min_window = max(min(MIN_WINDOW_FRAMES, config.window_frames), hop + look_ahead)
    window = max(config.window_frames, min_window)
    if level >= SHORTEST_WINDOWS:
        window = min(window, min_window)
    return replace(config, window_frames=window, hop_frames=hop)


class LoadMonitor:
    """The lag of one stream, and the load level that follows from it.

    Where computing takes no time, as in a session without a clock, the level falls to 0 and stays there.

    Parameters
    ----------
    config : StreamingConfig
    level : int
        The level to start with.
    max_level : int
        From `highest_level`.

    Attributes
    ----------
    level : int
        Index into `LOAD_LEVELS`.
    lag_s : float
        Seconds from the arrival of the last request's samples to its end.
    """

    def __init__(
        self, config: StreamingConfig, *, level: int = 0, max_level: int = len(LOAD_LEVELS) - 1
    ) -> None:
        self.level = level
        self.lag_s = 0.0
        self._hops_s = [
            apply_load_level(level, config).hop_frames / FRAMES_PER_SECOND for level in range(max_level + 1)
        ]
        self._finished_s = -math.inf
        self._consecutive_late = 0
        self._late_since_s = self._first_late_lag_s = 0.0
        self._early_since_s: float | None = None
        self._lag_to_report_s = FIRST_REPORTED_LAG_S

    def wait_until(self, time_s: float) -> None:
        """Note that no request begins before a time, counted like arrivals: the machine had other work."""
        self._finished_s = max(self._finished_s, time_s)

    def record(self, arrival_s: float, compute_s: float) -> bool:
        """Record a request; requests are recorded in the order in which they were computed.

        Parameters
        ----------
        arrival_s : float
            Arrival of the last sample that it needs: its number divided by 16000.
        compute_s : float
            Its computing time.

        Returns
        -------
        bool
            True if the next request is to be computed at another level, or the lag has grown at the highest.
        """
        self._finished_s = max(arrival_s, self._finished_s) + compute_s
        self.lag_s = self._finished_s - arrival_s
        self._consecutive_late = self._consecutive_late + 1 if self.lag_s > self._hops_s[self.level] else 0
        if self._consecutive_late == 1:
            self._late_since_s, self._first_late_lag_s = arrival_s, self.lag_s
        if not (self.level and self.lag_s <= RECOVERY_LAG_HOPS * self._hops_s[self.level - 1]):
            self._early_since_s = None  # it would not be early at the level below
        elif self._early_since_s is None:
            self._early_since_s = arrival_s
        catches_up = self.lag_s < self._first_late_lag_s and arrival_s - self._late_since_s < CATCH_UP_S
        if self._consecutive_late >= LATE_UPDATES_TO_SHED and not catches_up:
            if self.level + 1 < len(self._hops_s):
                return self._change_level(+1)
            if self.lag_s >= self._lag_to_report_s:
                self._lag_to_report_s = 2 * self.lag_s
                return True
        if self._early_since_s is not None and arrival_s - self._early_since_s >= RECOVERY_S:
            return self._change_level(-1)
        return False

    def _change_level(self, step: int) -> bool:
        self.level += step
        self._consecutive_late, self._early_since_s = 0, None
        self._lag_to_report_s = FIRST_REPORTED_LAG_S
        return True

"""The progress of a batch: a bar on a terminal, else a line every half minute."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self

from harken.batch import BatchState
from harken.cli.screen import ProgressBar, write_stderr

LINE_EVERY_S = 30.0


class BatchProgress:
    """The progress on standard error.

    Parameters
    ----------
    enabled : bool
        False to show nothing but errors.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._bar = ProgressBar(enabled, counts=True)
        self._state: BatchState | None = None
        self._next_line_s = perf_counter() + LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def show(self, state: BatchState) -> None:
        """Show the state."""
        self._state = state
        text = describe_state(state)
        if self._bar.enabled:
            self._bar.update("", text, state.rows, state.all_rows)
        elif self._enabled and perf_counter() >= self._next_line_s:
            self._next_line_s = perf_counter() + LINE_EVERY_S
            write_stderr(f"harken: {state.rows} of {state.all_rows} recordings, {text}")

    def note(self, text: str) -> None:
        """Show a line, above the bar."""
        if self._enabled:
            self._bar.write_stderr(f"harken: {text}")

    def describe_stop(self, message: str) -> str:
        """Return the message of a signal with what is done; rows that are not published yet are not."""
        if not self._state:
            return f"{message}; the same command goes on"
        done = f"{self._state.published} of {self._state.all_rows} recordings are done"
        return f"{message}; {done}, and the same command goes on from there"


def describe_state(state: BatchState) -> str:
    """Return the workers, the speed, the time left and the failures, in a line."""
    parts = [f"{state.workers} worker{'' if state.workers == 1 else 's'}"]
    if state.speed:
        parts.append(f"{state.speed:.1f} times real time")
        if state.left_s:
            parts.append(f"{format_duration(state.left_s / state.speed)} left")
    if state.failed:
        parts.append(f"{state.failed} failed")
    return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Format a duration in the two units that matter, such as ``3 h 20 min`` or ``41 s``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    shown = next((index for index, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for count, unit in units[shown : shown + 2])

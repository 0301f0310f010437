"""The progress of a batch: a bar on a terminal, else a line every half minute."""

from __future__ import annotations

import sys
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harken.batch import BatchState
from harken.cli.screen import counting_bar, write_stderr, write_stdout
from harken.cli.terminal import is_terminal, message_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._state: BatchState | None = None
        self._next_line_s = perf_counter() + LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def show(self, state: BatchState) -> None:
        """Show the state."""
        self._state = state
        if not self._enabled:
            return
        text = describe_state(state)
        if is_terminal(sys.stderr):
            self._show_bar(state, text)
        elif perf_counter() >= self._next_line_s:
            self._next_line_s = perf_counter() + LINE_EVERY_S
            write_stderr(f"harken: {state.rows} of {state.all_rows} recordings, {text}")

    def note(self, text: str) -> None:
        """Show a line, above the bar."""
        if not self._enabled:
            return
        if self._bar:
            self._bar.console.print(
                message_text(f"harken: {text}"), markup=False, emoji=False, highlight=False, soft_wrap=True
            )
        else:
            write_stderr(f"harken: {text}")

    def describe_stop(self, message: str) -> str:
        """Return the message of a signal with what is done; rows that are not published yet are not."""
        if not self._state:
            return f"{message}; the same command goes on"
        done = f"{self._state.published} of {self._state.all_rows} recordings are done"
        return f"{message}; {done}, and the same command goes on from there"

    def write_stdout(self, text: str) -> None:
        """Write to standard output."""
        write_stdout(text)

    def _show_bar(self, state: BatchState, text: str) -> None:
        if self._bar is None:
            self._bar = counting_bar()
            self._bar.start()
            self._task = self._bar.add_task("", total=state.all_rows)
        assert self._task is not None
        self._bar.update(self._task, completed=state.rows, total=state.all_rows, description=text)

    def _stop(self) -> None:
        if self._bar:
            self._bar.stop()


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

"""The progress bar: how much is done, how long the rest takes, how many times faster than speech."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from harken.cli.layout import format_time


class ProgressBar:
    """A bar at the foot of the terminal, one recording after another."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[pace]}", markup=False),
            console=Console(stderr=True),
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._task: TaskID | None = None
        self._progress.start()

    def update(self, label: str, done_s: float, total_s: float | None, elapsed_s: float) -> None:
        """Move the bar, after working for so many seconds."""
        speed = done_s / elapsed_s
        remaining = (
            f"{_format_seconds((total_s - done_s) / speed)} left, " if total_s and 0 < done_s < total_s else ""
        )
        pace = f"{remaining}{speed:.1f}x real time"
        if self._task is None:
            self._task = self._progress.add_task(label, visible=False, total=total_s, pace="")
        self._progress.update(self._task, visible=True, completed=done_s, pace=pace, refresh=True)

    def clear(self) -> None:
        """Make room for the next recording."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def print_above(self, text: str) -> None:
        """Print above the bar, as it stands."""
        self._progress.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def counting_bar() -> Progress:
    """Make a bar for things that are counted: how many of them are done, and how long the rest takes."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
        redirect_stderr=False,
        transient=True,
    )


def _format_seconds(duration_s: float) -> str:
    return format_time(duration_s).partition(".")[0]

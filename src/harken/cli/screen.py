"""What a person sees: the transcript on standard output, everything else on standard error."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from harken.cli.exits import PIPE_CLOSED, Stop
from harken.formats import format_timestamp
from harken.results import Segment, Transcript
from harken.transcribe.callbacks import ProgressCallback

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def format_time(seconds: float) -> str:
    """Time as ``mm:ss.mmm``, with hours where there are any."""
    return format_timestamp(round(seconds * 1000)).removeprefix("00:")


def format_timed_text(start_s: float, end_s: float, text: str) -> str:
    """One line: when something was said, and what."""
    return f"[{format_time(start_s)} --> {format_time(end_s)}] {text.strip()}"


def format_table(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows of a table, its columns as wide as they need to be."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def pluralize(count: int, noun: str) -> str:
    """How many there are of something."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def human_size(size: int) -> str:
    """Bytes, with the unit that people would choose."""
    power = min(int(math.log(max(size, 1), 1000)), 3)
    return f"{size / 1000**power:.{power and 1}f} {('B', 'kB', 'MB', 'GB')[power]}"


class ProgressBar:
    """A bar at the foot of the terminal, one recording after another."""

    def __init__(self) -> None:
        from rich.console import Console  # not needed for the help, and slow to import
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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


def write_stdout(text: str) -> None:
    """Write to standard output as it stands; whoever reads it sees it at once.

    Raises
    ------
    Stop
        If nobody reads it any more.
    """
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        raise Stop(PIPE_CLOSED) from None


class TimestampedLines:
    """`harken.formats.Form` of one line a segment, for people.

    Parameters
    ----------
    heading : str, optional
        Name of the recording, where there are several.
    """

    def __init__(self, heading: str | None = None) -> None:
        self._header = f"==> {heading} <==\n" if heading else ""

    def header(self) -> str:
        """Name of the recording, as ``head`` shows it."""
        return self._header

    def segment(self, segment: Segment) -> str:
        """When something was said, and what."""
        return f"{format_timed_text(segment.start_s, segment.end_s, segment.text)}\n"

    def footer(self, transcript: Transcript) -> str:
        """Nothing."""
        return ""


class Screen:
    """A terminal with a progress bar at its foot, or whatever stands in for one.

    Parameters
    ----------
    bar : bool
        Whether a bar is wanted. It shows on a terminal only, and from the first window on: the first segment
        need not wait for it.
    """

    def __init__(self, show_bar: bool) -> None:
        self._bar_enabled = show_bar and sys.stderr.isatty()
        self._bar: ProgressBar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def write_stdout(self, text: str) -> None:
        """Write to standard output, above the bar where both share a terminal."""
        if self._bar and sys.stdout.isatty():
            self._bar.print_above(text)
        else:
            write_stdout(text)

    def write_stderr(self, text: str) -> None:
        """Write a line to standard error."""
        if self._bar:
            self._bar.print_above(f"{text}\n")
        else:
            click.echo(text, err=True)

    def show_status(self, text: str) -> None:
        """Say what takes a while, on a line that the next thing overwrites; an empty text takes it away."""
        if self._bar_enabled and not self._bar:
            click.echo(f"\r\033[K{text}", err=True, nl=False)

    def track(self, label: str, total_s: float | None) -> ProgressCallback:
        """Hook that shows how much of a recording is done, of a length that may be unknown."""

        began_s = perf_counter()
        if self._bar:
            self._bar.clear()

        def progress(done_s: float, finished: bool) -> None:
            if not self._bar_enabled:
                return
            if self._bar is None:
                self._bar = ProgressBar()
            self._bar.update(label, done_s, total_s, perf_counter() - began_s)

        return progress

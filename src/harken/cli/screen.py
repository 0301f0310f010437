"""What a person sees: the transcript on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from harken.cli.exits import PIPE_CLOSED, Stop
from harken.cli.layout import format_timed_text
from harken.results import Segment, Transcript
from harken.transcribe.callbacks import ProgressCallback

if TYPE_CHECKING:
    from harken.cli.bar import ProgressBar


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
                from harken.cli.bar import ProgressBar

                self._bar = ProgressBar()
            self._bar.update(label, done_s, total_s, perf_counter() - began_s)

        return progress

"""The screen of a live session: captions that a terminal rewrites in place, or lines for a file or a pipe.

It may go away while somebody speaks: a closed terminal, a full disk.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import wcwidth

from harken.cli.terminal import (
    CLEAR_LINE,
    discard,
    is_terminal,
    message_text,
    stdout_errors,
    write_stderr,
    write_stdout,
)
from harken.errors import OutputError
from harken.formats import replace_controls
from harken.results import Segment
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded

CTRL_C_CELLS = 2
"""Cells of the ^C that a terminal shows where the cursor stands."""
CURSOR_UP, DIM, PLAIN = "\033[A", "\033[2m", "\033[0m"


class CaptionRenderer:
    """The captions on a terminal: final lines, and below them the committed text plain and the tentative text dim.

    Parameters
    ----------
    format_segment : callable
        Returns the line of a segment.
    size : callable
        Returns columns and rows of the terminal.
    """

    def __init__(
        self,
        format_segment: Callable[[Segment], str],
        size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
    ) -> None:
        self._format_segment = format_segment
        self._size = size
        self._live_text = ""
        self._row_cells: list[int] = []  # width of each line that may be rewritten

    def show(self, event: Event) -> None:
        """Update the terminal with an event."""
        match event:
            case Interim():
                committed = event.committed.lstrip()
                tentative = event.tentative if committed else event.tentative.lstrip()
                committed, tentative = replace_controls(committed), replace_controls(tentative)
                self._write("", f"{committed}{DIM}{tentative}{PLAIN}" if tentative else committed)
            case FinalSegment():
                self._write(f"{replace_controls(self._format_segment(event.segment))}\n", "")
            case SpeechEnded():
                self._write("", "")

    def write_stderr(self, text: str) -> None:
        """Write a message to standard error, above the live text if both share the terminal."""
        if is_terminal(sys.stderr):
            self._write(f"{message_text(text)}\n", self._live_text)
        else:
            write_stderr(text)

    def close(self) -> None:
        """Leave the live text and go to the next line."""
        with stdout_errors():
            click.echo("\n" if self._row_cells else self._erasure(self._size()[0]), nl=False)
        self._row_cells = []

    def _write(self, final_text: str, live_text: str) -> None:
        """Replace the live text by a final text, followed by a new live text."""
        if not final_text and live_text == self._live_text:
            return
        width, height = self._size()
        lines = wcwidth.wrap(live_text, max(1, width - CTRL_C_CELLS))[-max(1, height - 1) :]
        shown = "\n".join(lines)
        with stdout_errors():  # one write, or the terminal flickers
            click.echo(f"{self._erasure(width)}{final_text}{shown}", nl=False)
        self._live_text, self._row_cells = live_text, [wcwidth.width(line) for line in lines]

    def _erasure(self, width: int) -> str:
        """Return the control codes that erase the live text, which a terminal made narrower has wrapped again.

        They erase one row at least, since it may show a ^C.
        """
        rows = max(1, sum(max(1, -(-cells // width)) for cells in self._row_cells))
        return CLEAR_LINE + f"{CURSOR_UP}{CLEAR_LINE}" * (rows - 1)


class LineRenderer:
    """The lines for a file or a pipe, each written as soon as its event happens.

    Parameters
    ----------
    format_event : callable
        Returns the line of an event with its line end; empty if the event is not shown.
    """

    def __init__(self, format_event: Callable[[Event], str]) -> None:
        self._format_event = format_event

    def show(self, event: Event) -> None:
        """Write the line of an event."""
        if text := self._format_event(event):
            write_stdout(text)

    def write_stderr(self, text: str) -> None:
        """Write a message to standard error."""
        write_stderr(text)

    def close(self) -> None:
        """Do nothing: every line has been written."""


EventRenderer = CaptionRenderer | LineRenderer


class SpeakerMark:
    """The mark before a caption whose speaker is not that of the one before: ``A: ``."""

    def __init__(self) -> None:
        self._speaker: tuple[str, ...] = ()

    def __call__(self, segment: Segment) -> str:
        """Return the mark of the next segment; empty where the same speaker goes on."""
        before, self._speaker = self._speaker, segment.speakers[:1]
        return f"{self._speaker[0]}: " if self._speaker and self._speaker != before else ""


class LiveDisplay:
    """A renderer of events that stops showing them once standard output cannot be written.

    Attributes
    ----------
    problem : str
        Why nothing is shown any more; empty as long as events are shown.
    """

    def __init__(self, renderer: EventRenderer) -> None:
        self.problem = ""
        self._renderer = renderer

    def show(self, event: Event) -> None:
        """Show an event."""
        if not self.problem:
            with self._noticing_loss():
                self._renderer.show(event)

    def tell(self, text: str) -> None:
        """Write a message to standard error, if that is still there."""
        try:
            self._renderer.write_stderr(text)
        except OSError:
            discard(sys.stderr)

    def close(self) -> None:
        """Finish the output and leave the text shown so far."""
        with self._noticing_loss():
            self._renderer.close()

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except OutputError as error:
            self.problem = str(error)
            discard(sys.stdout)

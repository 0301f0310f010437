"""The screen of a live session: captions that a terminal rewrites in place, or lines for a file or a pipe.

It may go away while somebody speaks: a closed terminal, a full disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size

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
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded

CTRL_C_CELLS = 2
"""Cells of the ^C that a terminal shows where the cursor stands."""
CURSOR_UP, DIM, PLAIN = "\033[A", "\033[2m", "\033[0m"


class LiveDisplay:
    """The events of a session as lines, each written as soon as its event happens, as long as that is possible.

    Parameters
    ----------
    format_event : callable
        Returns the line of an event with its line end; empty if the event is not shown.

    Attributes
    ----------
    problem : str
        Why nothing is shown any more; empty as long as events are shown.
    """

    def __init__(self, format_event: Callable[[Event], str]) -> None:
        self.problem = ""
        self._format_event = format_event

    def show(self, event: Event) -> None:
        """Show an event."""
        if not self.problem:
            with self._noticing_loss():
                self._show(event)

    def tell(self, text: str) -> None:
        """Write a message to standard error, if that is still there."""
        write_stderr(text)

    def close(self) -> None:
        """Finish the output and leave the text shown so far."""

    def _show(self, event: Event) -> None:
        write_stdout(self._format_event(event))

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except OutputError as error:
            self.problem = str(error)
            discard(sys.stdout)


class CaptionDisplay(LiveDisplay):
    """The captions on a terminal: final lines, and below them the committed text plain and the tentative text dim."""

    def __init__(self, format_event: Callable[[Event], str]) -> None:
        super().__init__(format_event)
        self._live_text = ""
        self._row_cells: list[int] = []  # width of each line that may be rewritten

    def tell(self, text: str) -> None:
        """Write a message to standard error, above the live text if both share the terminal."""
        if not is_terminal(sys.stderr):
            super().tell(text)
            return
        try:
            self._write(f"{message_text(text)}\n", self._live_text)
        except OSError:
            discard(sys.stderr)

    def close(self) -> None:
        """Leave the live text and go to the next line."""
        with self._noticing_loss(), stdout_errors():
            click.echo("\n" if self._row_cells else self._erasure(get_terminal_size().columns), nl=False)
        self._row_cells = []

    def _show(self, event: Event) -> None:
        match event:
            case Interim():
                committed = event.committed.lstrip()
                tentative = event.tentative if committed else event.tentative.lstrip()
                committed, tentative = replace_controls(committed), replace_controls(tentative)
                self._write("", f"{committed}{DIM}{tentative}{PLAIN}" if tentative else committed)
            case FinalSegment():
                self._write(replace_controls(self._format_event(event)), "")
            case SpeechEnded():
                self._write("", "")

    def _write(self, final_text: str, live_text: str) -> None:
        """Replace the live text by a final text, followed by a new live text."""
        if not final_text and live_text == self._live_text:
            return
        width, height = get_terminal_size()
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

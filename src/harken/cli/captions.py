"""What is said, while it is spoken: on a terminal rewritten in place until it is final, elsewhere line by line."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from harken.cli.screen import say
from harken.results import Segment
from harken.streaming import Committed, Event, Interim, SpeechEnded

_ECHO = 2  # cells for the ^C that a terminal shows where the cursor stands


class Captions:
    """Committed text plain, tentative text dim; both at the foot of the terminal, above them what is final.

    Parameters
    ----------
    line : callable
        Makes a line of a segment.
    console : Console, optional
        The terminal.
    """

    def __init__(self, line: Callable[[Segment], str], console: Console | None = None) -> None:
        self._line = line
        self._console = console or Console(highlight=False)
        self._text = Text()
        self._rows: list[int] = []  # cells of each line that may be rewritten

    def show(self, event: Event) -> None:
        """Bring the terminal up to an event."""
        match event:
            case Interim():
                committed = event.committed.lstrip()
                tentative = event.tentative if committed else event.tentative.lstrip()
                self._write("", Text.assemble(committed, (tentative, "dim")))
            case Committed():
                self._write(f"{self._line(event.segment)}\n", Text())
            case SpeechEnded():
                self._write("", Text())

    def note(self, text: str) -> None:
        """Say something else on standard error, above what may be rewritten where both share the terminal."""
        if sys.stderr.isatty():
            self._write(f"{text}\n", self._text)
        else:
            click.echo(text, err=True)

    def close(self) -> None:
        """Leave what stands there, and go to the next line."""
        if self._rows:
            self._console.print()
            self._rows = []
        else:
            self._console.control(self._erasure(self._console.width))

    def _write(self, final: str, text: Text) -> None:
        """Put something final in place of what may be rewritten, and a new text behind it."""
        if not final and text == self._text:
            return
        width, height = self._console.size
        lines = list(text.wrap(self._console, max(1, width - _ECHO)))[-max(1, height - 1) :] if text else []
        with self._console:  # at once, or it flickers
            self._console.control(self._erasure(width))
            self._console.print(Text(final), end="")
            self._console.print(Text("\n").join(lines), end="", no_wrap=True, overflow="ignore", crop=False)
        self._text, self._rows = text, [cell_len(line.plain) for line in lines]

    def _erasure(self, width: int) -> Control:
        """Empty the rows that are rewritten: a terminal that has become narrower has broken them again.

        It is one at least, as the ^C may stand there.
        """
        rows = max(1, sum(max(1, -(-cells // width)) for cells in self._rows))
        above = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * (rows - 1)
        return Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *above)


class Lines:
    """Lines for a file or a pipe, as soon as they are there.

    Parameters
    ----------
    line : callable
        Makes a line of an event, with its end; empty if it does not appear.
    """

    def __init__(self, line: Callable[[Event], str]) -> None:
        self._line = line

    def show(self, event: Event) -> None:
        """Write the line of an event."""
        if text := self._line(event):
            say(text)

    def note(self, text: str) -> None:
        """Say something else, on standard error."""
        click.echo(text, err=True)

    def close(self) -> None:
        """Nothing is left to do."""

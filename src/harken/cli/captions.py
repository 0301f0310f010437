"""What is said, while it is spoken: on a terminal rewritten in place until it is final, elsewhere line by line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click
from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from harken.cli.screen import write_stdout
from harken.formats import as_json
from harken.results import Segment
from harken.streaming import Event, FinalSegment, Interim, LoadChanged, SpeechEnded, SpeechStarted
from harken.types import SAMPLE_RATE

_EVENT_NAMES: dict[type, str] = {
    SpeechStarted: "speech_started",
    Interim: "interim",
    FinalSegment: "final_segment",
    SpeechEnded: "speech_ended",
    LoadChanged: "load_changed",
}


def live_event_json(event: Event) -> str:
    """One line: ``event`` says which it is; then come its fields, ``emitted_s`` for `emitted_samples`."""
    fields = as_json(event)
    times = {
        "audio_s": fields.pop("audio_s"),
        "emitted_s": fields.pop("emitted_samples") / SAMPLE_RATE,
        "compute_s": round(fields.pop("compute_s"), 6),
    }
    return json.dumps({"event": _EVENT_NAMES[type(event)]} | times | fields, ensure_ascii=False) + "\n"


_CTRL_C_CELLS = 2  # cells for the ^C that a terminal shows where the cursor stands


class CaptionRenderer:
    """Committed text plain, tentative text dim; both at the foot of the terminal, above them what is final.

    Parameters
    ----------
    line : callable
        Makes a line of a segment.
    console : Console, optional
        The terminal.
    """

    def __init__(self, format_segment: Callable[[Segment], str], console: Console | None = None) -> None:
        self._format_segment = format_segment
        self._console = console or Console(highlight=False)
        self._live_text = Text()
        self._row_cells: list[int] = []  # cells of each line that may be rewritten

    def show(self, event: Event) -> None:
        """Bring the terminal up to an event."""
        match event:
            case Interim():
                committed = event.committed.lstrip()
                tentative = event.tentative if committed else event.tentative.lstrip()
                self._write("", Text.assemble(committed, (tentative, "dim")))
            case FinalSegment():
                self._write(f"{self._format_segment(event.segment)}\n", Text())
            case SpeechEnded():
                self._write("", Text())

    def write_stderr(self, text: str) -> None:
        """Say something else on standard error, above what may be rewritten where both share the terminal."""
        if sys.stderr.isatty():
            self._write(f"{text}\n", self._live_text)
        else:
            click.echo(text, err=True)

    def close(self) -> None:
        """Leave what stands there, and go to the next line."""
        if self._row_cells:
            self._console.print()
            self._row_cells = []
        else:
            self._console.control(self._erase_control(self._console.width))

    def _write(self, final_text: str, live_text: Text) -> None:
        """Put something final in place of what may be rewritten, and a new text behind it."""
        if not final_text and live_text == self._live_text:
            return
        width, height = self._console.size
        lines = (
            list(live_text.wrap(self._console, max(1, width - _CTRL_C_CELLS)))[-max(1, height - 1) :]
            if live_text
            else []
        )
        with self._console:  # at once, or it flickers
            self._console.control(self._erase_control(width))
            self._console.print(Text(final_text), end="")
            self._console.print(Text("\n").join(lines), end="", no_wrap=True, overflow="ignore", crop=False)
        self._live_text, self._row_cells = live_text, [cell_len(line.plain) for line in lines]

    def _erase_control(self, width: int) -> Control:
        """Empty the rows that are rewritten: a terminal that has become narrower has broken them again.

        It is one at least, as the ^C may stand there.
        """
        rows = max(1, sum(max(1, -(-cells // width)) for cells in self._row_cells))
        above = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * (rows - 1)
        return Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *above)


class LineRenderer:
    """Lines for a file or a pipe, as soon as they are there.

    Parameters
    ----------
    line : callable
        Makes a line of an event, with its end; empty if it does not appear.
    """

    def __init__(self, format_event: Callable[[Event], str]) -> None:
        self._format_event = format_event

    def show(self, event: Event) -> None:
        """Write the line of an event."""
        if text := self._format_event(event):
            write_stdout(text)

    def write_stderr(self, text: str) -> None:
        """Say something else, on standard error."""
        click.echo(text, err=True)

    def close(self) -> None:
        """Nothing is left to do."""

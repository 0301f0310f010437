"""The terminal: the transcript on standard output; progress, messages and errors on standard error.

Nothing that comes from outside controls it.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Never, Self, TextIO

import click

from harken.cli.exits import PIPE_CLOSED, Stop
from harken.errors import OutputError
from harken.formats import (
    TranscriptFormat,
    escape_controls,
    format_timestamp,
    main_speaker,
    printable,
    replace_controls,
)

if TYPE_CHECKING:
    from tqdm import tqdm

    from harken.results import Segment
    from harken.transcribe.options import ProgressCallback

CLEAR_LINE = "\r\033[2K"
SPEED_SHOWN_FROM_S = 0.5
"""Time after which a speed means something."""
TIME_LEFT_SHOWN_FROM_S = 5.0
"""Time after which the time left can be told; the first windows are read ahead."""
MOST_COLUMNS = 100
"""Columns of a progress bar, with what stands beside it."""


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; one that was closed before the start is None."""
    return stream is not None and stream.isatty()


def write_stdout(text: str) -> None:
    """Write text to standard output and flush it; control characters become escapes such as ``\\u001b``.

    Raises
    ------
    OutputError
        If it cannot be written.
    Stop
        If the reader of a pipe has closed it.
    """
    if not text:
        return
    if sys.stdout is None:
        raise OutputError("standard output: cannot be written: it is closed")
    with stdout_errors():
        click.echo(escape_controls(text), nl=False)


def write_stderr(text: str, *, before: str = "", end: str = "\n") -> None:
    """Write a message to standard error as `message_text` returns it, between control codes of harken's own.

    If that fails nobody can be told, and the work goes on.
    """
    try:
        click.echo(f"{before}{message_text(text)}{end}", err=True, nl=False)
    except OSError:
        _discard_at_exit(sys.stderr)


def message_text(text: str) -> str:
    """Return a message with escapes for all characters that cannot be seen, except line feeds and tabs."""
    return printable(text, keep="\n\t")


@contextmanager
def stdout_errors() -> Iterator[None]:
    """Convert the errors of writing to standard output to `OutputError`, or to `Stop` if its reader went away."""
    try:
        yield
    except BrokenPipeError:
        raise Stop(PIPE_CLOSED) from None
    except OSError as error:
        _discard_at_exit(sys.stdout)
        raise OutputError(f"standard output: cannot be written: {error.strerror or error}") from error


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that the parent process closed.

    Otherwise the next file opened would take their number, and what a library prints would go into that file. Writing
    to standard output fails, as it should.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


@cache
def _discard_at_exit(stream: TextIO) -> None:
    """Discard what could not be written: the interpreter tries again at its exit, and fails with code 120."""
    atexit.register(discard, stream)


def discard(stream: TextIO) -> None:
    """Redirect a standard stream to the null device, where the interpreter flushes its last bytes.

    Source: docs.python.org, signal, "Note on SIGPIPE".
    """
    with suppress(OSError, ValueError):  # a stream that is no file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def format_time(seconds: float) -> str:
    """Format a time as ``mm:ss.mmm``, with hours if there are any."""
    return format_timestamp(round(seconds * 1000)).removeprefix("00:")


def format_timed_text(start_s: float, end_s: float, text: str) -> str:
    """Format a text with its start and end."""
    return f"[{format_time(start_s)} --> {format_time(end_s)}] {replace_controls(text).strip()}"


def no_speech(duration_s: float, peak: float, *, live: bool = False) -> str:
    """Return the warning about audio, of which the largest magnitude is given, in which nobody was found to speak."""
    sound = f"sound (peak {20 * math.log10(peak):.0f} dBFS)" if peak else "silence"
    way_on = "" if live else "; --no-vad transcribes it all"
    return f"no speech found in {duration_s:.1f} s of {sound}{way_on}"


def format_table(rows: Iterable[tuple[str, ...]]) -> str:
    """Format rows as a table; each column is as wide as its widest cell."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun in the singular or plural."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def disk_size(path: Path) -> int:
    """Return the number of bytes of a file, or of all files in a folder; those that are gone do not count."""
    if path.is_file():
        return path.stat().st_size
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                size += os.path.getsize(os.path.join(folder, name))
    return size


def human_size(size: int) -> str:
    """Format a number of bytes with a decimal unit."""
    power = min(int(math.log(max(size, 1), 1000)), 3)
    return f"{size / 1000**power:.{power and 1}f} {('B', 'kB', 'MB', 'GB')[power]}"


def _make_bar(total: float | None, columns: int, counts: bool) -> tqdm[Never]:
    from tqdm import tqdm  # not needed for the help, and slow to import

    tqdm.monitor_interval = 0  # no thread that redraws
    tqdm.set_lock(threading.RLock())  # by default it is one for processes, a semaphore of the system
    amount = "{n_fmt}/{total_fmt} {remaining}" if counts else "{percentage:3.0f}%"
    return tqdm(
        total=total,
        bar_format="{desc} {bar} " + amount + "{postfix}" if total else "{desc}{postfix}",
        file=sys.stderr,
        leave=False,
        position=0,
        ncols=columns,
        nrows=2,  # a terminal that does not tell its size has none, and no bar would be shown
    )


def format_pace(done_s: float, total_s: float | None, elapsed_s: float) -> str:
    """Format the time left and the speed after `elapsed_s` seconds of work, once they mean something."""
    if elapsed_s < SPEED_SHOWN_FROM_S:
        return ""
    speed = done_s / elapsed_s
    time_left = ""
    if total_s and 0 < done_s < total_s and elapsed_s >= TIME_LEFT_SHOWN_FROM_S:
        time_left = f"{format_time((total_s - done_s) / speed).partition('.')[0]} left, "
    return f"{time_left}{speed:.1f}x real time"


class Unshown(TranscriptFormat):
    """The format of a transcript that is not shown."""


class TimestampedLines(TranscriptFormat):
    """The format of the terminal: one line per segment, with its times.

    Parameters
    ----------
    heading : str, optional
        Name of the recording, if there are several.
    """

    def __init__(self, heading: str | None = None) -> None:
        self._header = f"==> {printable(heading)} <==\n" if heading else ""

    def header(self) -> str:
        """Return the name of the recording, in the style of ``head``."""
        return self._header

    def segment(self, segment: Segment) -> str:
        """Return the line of a segment."""
        speaker = main_speaker(segment.speakers)
        text = f"{speaker}: {segment.text.strip()}" if speaker else segment.text
        return f"{format_timed_text(segment.start_s, segment.end_s, text)}\n"


class Screen:
    """The output of a command: a terminal with a progress bar at the bottom, or files and pipes.

    Parameters
    ----------
    show_progress : bool
        Show a bar, for one task at a time. It appears only on a terminal, after the first window, so that it does not
        delay the first segment.
    counts : bool
        Show how many items are done and the time left, instead of a percentage.
    """

    def __init__(self, show_progress: bool, *, counts: bool = False) -> None:
        self.show_progress = show_progress
        self.has_bar = show_progress and is_terminal(sys.stderr)
        self._counts = counts
        self._bar: tqdm[Never] | None = None
        self._task: object = None
        self._idle_since_s = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._close()

    def write_stdout(self, text: str) -> None:
        """Write to standard output, above the bar if both share the terminal; see `harken.cli.terminal`."""
        if text and self._bar is not None and is_terminal(sys.stdout):
            with stdout_errors():
                self._print_above(self._bar, escape_controls(text), sys.stdout)
        else:
            write_stdout(text)

    def write_stderr(self, text: str) -> None:
        """Write a line to standard error, above the bar; see `harken.cli.terminal`."""
        if self._bar is not None:
            with suppress(OSError):
                self._print_above(self._bar, f"{message_text(text)}\n", sys.stderr)
        else:
            write_stderr(text)

    def update(self, task: object, label: str, done: float, total: float | None, note: str = "") -> None:
        """Show how much of a task is done, in place of the task before."""
        if not self.has_bar:
            return
        columns = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
        try:
            if self._bar is None or task != self._task:
                self._close()
                self._bar, self._task = _make_bar(total, columns, self._counts), task
            # The header of a recording may name too short a time.
            self._bar.n, self._bar.ncols = min(done, total or done), columns
            self._bar.set_description_str(printable(label), refresh=False)
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.refresh()
        except OSError:  # the terminal has gone
            self.has_bar = False

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show a status during a block, on a line that the next output overwrites."""
        self._show_status(text)
        try:
            yield
        finally:
            self._show_status("")

    def track_all(self, label: str, durations_s: Iterable[float | None]) -> ProgressCallback:
        """Return a callback that shows the progress through several recordings, some of unknown length."""
        all_durations_s = [*durations_s]
        total_s = sum(duration_s or 0.0 for duration_s in all_durations_s)
        return self.track(label, None if None in all_durations_s else total_s)

    def track(self, label: str, total_s: float | None) -> ProgressCallback:
        """Return a callback that shows the progress through a recording, whose length may be unknown.

        Its clock starts at the end of what was shown before: a status, or the progress of another recording.
        """
        began_s: float | None = None

        def progress(done_s: float, finished: bool) -> None:
            nonlocal began_s
            began_s = self._idle_since_s if began_s is None else began_s
            self._idle_since_s = perf_counter()
            elapsed_s = self._idle_since_s - began_s
            self.update(progress, label, done_s, total_s, format_pace(done_s, total_s, elapsed_s))

        return progress

    def _show_status(self, text: str) -> None:
        self._idle_since_s = perf_counter()
        if self.has_bar and self._bar is None:
            write_stderr(text, before=CLEAR_LINE, end="")

    @staticmethod
    def _print_above(bar: tqdm[Never], text: str, stream: TextIO) -> None:
        bar.clear()
        stream.write(text)
        stream.flush()
        bar.refresh()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()

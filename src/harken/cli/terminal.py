"""Writing to standard output and standard error: nothing that comes from outside controls the terminal."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TextIO

import click

from harken.cli.exits import PIPE_CLOSED, Stop
from harken.errors import OutputError
from harken.formats import escape_controls, printable


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
    """Open the null device in place of standard streams that are closed.

    Otherwise the next file opened would take their number, and what a library prints would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


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

"""The exit codes, the errors that lead to each, and the signals that end the work."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import click

from harken.errors import (
    AudioError,
    BackendUnavailable,
    CheckpointError,
    ManifestError,
    OptionError,
    OutputError,
)


class Stop(BaseException):
    """The request to end the process now and keep the results so far.

    Parameters
    ----------
    code : int
        Exit code.
    message : str
        Text for the user; empty if nobody can read it any more.
    """

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Exit:
    """An exit code, its meaning, and the errors that lead to it."""

    code: int
    meaning: str
    errors: tuple[type[BaseException], ...] = ()


SOME_FAILED = 1
UNEXPECTED = 70
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

EXITS = (
    Exit(0, "everything was done"),
    Exit(SOME_FAILED, "of several files some failed and the rest was done; or doctor found a fault"),
    Exit(2, "the command line or the value of an option is wrong", (click.ClickException, OptionError)),
    Exit(
        3, "a recording, a microphone or a manifest is missing, or cannot be read", (AudioError, ManifestError)
    ),
    Exit(4, "a model is missing or damaged", (CheckpointError,)),
    Exit(5, "a result cannot be written", (OutputError,)),
    Exit(6, "a runtime is not installed", (BackendUnavailable,)),
    Exit(UNEXPECTED, "an error that harken did not foresee", (Exception,)),
    Exit(INTERRUPTED, "interrupted (Ctrl-C); what was done has been written"),
    Exit(PIPE_CLOSED, "the reader of the output went away"),
    Exit(TERMINATED, "terminated (SIGTERM); what was done has been written"),
)

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
"""Signals that end the work, and the word for each in messages."""

EPILOGUE = "\b\nExit codes:\n" + "\n".join(f"  {exit.code:>3}  {exit.meaning}" for exit in EXITS)


def exit_code(error: BaseException) -> int:
    """Return the code of the first row of `EXITS` that the error belongs to."""
    return next(exit.code for exit in EXITS if isinstance(error, exit.errors))


def signal_stop(number: int, addition: str = "") -> Stop:
    """Return the `Stop` of a signal; its message is the word for the signal and an addition."""
    return Stop(128 + number, SIGNALS[signal.Signals(number)] + addition)


@contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle `SIGNALS` with a function, except those that the parent process has set to be ignored.

    The handlers before are restored at the end.
    """
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)

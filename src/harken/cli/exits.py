"""The exit codes, the errors that lead to each, and the signals that end the work."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import click

from harken.errors import (
    AudioError,
    BackendUnavailable,
    CheckpointError,
    ManifestError,
    OptionError,
    OutputError,
    PlanError,
    WorkerError,
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
FIRST_SIGNAL_CODE = 128
"""The exit code of a signal is its number above this."""
PIPE_CLOSED = 141
TERMINATED = 143

EXITS = (
    Exit(0, "everything was done"),
    Exit(SOME_FAILED, "of several files some failed and the rest was done; or doctor or check found a fault"),
    Exit(
        2,
        "the command line or the value of an option is wrong, or a batch cannot be planned",
        (click.ClickException, OptionError, PlanError),
    ),
    Exit(
        3, "a recording, a microphone or a manifest is missing, or cannot be read", (AudioError, ManifestError)
    ),
    Exit(4, "a model is missing or damaged", (CheckpointError,)),
    Exit(5, "a result cannot be written", (OutputError,)),
    Exit(
        6,
        "a runtime is not installed, or the workers of a batch cannot start",
        (BackendUnavailable, WorkerError),
    ),
    Exit(7, "there is not enough memory", (MemoryError,)),
    Exit(UNEXPECTED, "an error that harken did not foresee", (Exception,)),
    Exit(129, "the terminal was closed (SIGHUP); what was done has been written"),
    Exit(130, "interrupted (Ctrl-C); what was done has been written"),
    Exit(PIPE_CLOSED, "the reader of the output went away"),
    Exit(TERMINATED, "terminated (SIGTERM); what was done has been written"),
)

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
"""Signals that end the work, and the word for each in messages."""
if hasattr(signal, "SIGHUP"):  # not on Windows
    SIGNALS[signal.SIGHUP] = "hung up"

EPILOGUE = "\b\nExit codes:\n" + "\n".join(f"  {exit.code:>3}  {exit.meaning}" for exit in EXITS)


def exit_code(error: BaseException) -> int:
    """Return the code of the first row of `EXITS` that the error belongs to."""
    return next(exit.code for exit in EXITS if isinstance(error, exit.errors))


def describe_error(error: BaseException) -> str:
    """Return the message of an error with its notes, and with its type if harken did not foresee it."""
    message = str(error)
    if isinstance(error, MemoryError):
        message = message or "not enough memory"
    elif exit_code(error) == UNEXPECTED:
        message = (
            f"{type(error).__name__}: {error}: harken did not foresee this; HARKEN_DEBUG=1 in the environment shows "
            "the traceback"
        )
    return "; ".join([message, *getattr(error, "__notes__", ())])


def signal_stop(number: int, addition: str = "") -> Stop:
    """Return the `Stop` of a signal; its message is the word for the signal and an addition."""
    return Stop(FIRST_SIGNAL_CODE + number, SIGNALS[signal.Signals(number)] + addition)

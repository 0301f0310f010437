"""Exit codes as data: which error gives which code, and the page of the help that says so."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The process is to end now; what has been done until then is kept.

    Parameters
    ----------
    code : int
        Exit code.
    message : str
        For the person; empty where nobody is left to read it.
    """

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Exit:
    """One exit code, what it means, and the errors that lead to it."""

    code: int
    meaning: str
    errors: tuple[type[BaseException], ...] = ()


SOME_FAILED = 1
UNEXPECTED = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

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
    Exit(143, "terminated (SIGTERM); what was done has been written"),
)

EPILOGUE = "\b\nExit codes:\n" + "\n".join(f"  {exit.code:>3}  {exit.meaning}" for exit in EXITS)


def exit_code(error: BaseException) -> int:
    """Code of the first row of `EXITS` that the error belongs to."""
    return next(exit.code for exit in EXITS if isinstance(error, exit.errors))

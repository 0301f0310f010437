"""The exit codes, the errors that lead to each, and the signals that end the work."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType, SimpleNamespace, TracebackType
from typing import Self

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
HUNG_UP = 129
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

EXITS = (
    Exit(0, "everything was done"),
    Exit(SOME_FAILED, "of several files some failed and the rest was done; or doctor found a fault"),
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
    Exit(HUNG_UP, "the terminal was closed (SIGHUP); what was done has been written"),
    Exit(INTERRUPTED, "interrupted (Ctrl-C); what was done has been written"),
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


SignalHandler = Callable[[int, FrameType | None], None]

answers = SimpleNamespace(latest_s=-math.inf)
"""The latest time, by `time.monotonic`, at which the main thread has handled a signal."""

signal_listeners: list[Callable[[int], bool]] = []
"""Functions that are called, in a thread, with a signal that the main thread does not handle in time; if one returns
True, it has answered the signal, and the main thread may go on."""


@contextmanager
def handling_signals(handler: SignalHandler) -> Iterator[None]:
    """Handle `SIGNALS` with a function, except those that the parent process has set to be ignored.

    The handlers before are restored at the end.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        answers.latest_s = time.monotonic()
        handler(number, frame)

    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)


@contextmanager
def finishing_calls(patience: int = 1) -> Iterator[None]:
    """Let so many signals wait for a call of the main thread that takes long; the next one ends the process."""
    waiting: list[int] = []

    def wait(number: int) -> bool:
        waiting.append(number)
        return len(waiting) <= patience

    signal_listeners.append(wait)
    try:
        yield
    finally:
        signal_listeners.remove(wait)


@contextmanager
def keeping_stop() -> Iterator[None]:
    """Raise the `Stop` of a signal behind the block if the block has swallowed it.

    Packages do that while they are imported: by a bare ``except``, or as an import that failed.
    """
    stops: list[Stop] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(signal_stop(number))
        raise stops[-1]

    with handling_signals(stop):
        yield
    if stops:
        raise stops[0]


class StopDeferral:
    """A block whose last part is not interrupted by the first signals; a further one stops it at once.

    ``with StopDeferral() as deferral``, and ``deferral.begin()`` before what must be finished. The `Stop` of a signal
    since then is raised at the end of the block.

    Parameters
    ----------
    patience : int
        Number of signals that wait.
    """

    def __init__(self, patience: int = 1) -> None:
        self._patience = patience
        self._stop: Stop | None = None
        self._handling = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handling.close()
        if self._stop and error is None:
            raise self._stop
        if self._stop and not isinstance(error, Stop):
            raise Stop(self._stop.code, f"{self._stop}; {error}") from error

    def begin(self) -> None:
        """Defer the first signal from now on."""
        if threading.current_thread() is threading.main_thread():
            self._handling.enter_context(finishing_calls(self._patience))
            self._handling.enter_context(handling_signals(self._on_signal))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._patience -= 1
        if self._patience < 0:
            raise signal_stop(number)
        self._stop = self._stop or signal_stop(number)

"""The signals that end the work, and what has to be saved or finished before.

Python runs signal handlers in the main thread only, between two instructions; there a signal raises `Stop`. A call into
a runtime can take seconds, so a thread watches the signals too, and ends the process where the main thread does not
answer.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock, Thread, Timer
from types import FrameType, TracebackType
from typing import NoReturn

from harken.cli.exits import FIRST_SIGNAL_CODE, SIGNALS, Stop, signal_stop
from harken.cli.terminal import CLEAR_LINE, is_terminal, message_text
from harken.files import remove_own

ANSWER_S = 0.7
"""Time that the main thread has to answer a signal."""
REPEAT_S = 0.02
"""Time after which a signal is repeated that was dropped."""

Listener = Callable[[int], bool]


@dataclass(slots=True)
class Answers:
    """The answers of the main thread to signals."""

    latest_s: float = -math.inf  # when it has handled the latest one, by `time.monotonic`
    stop: Stop | None = None  # what it has raised, until a block catches it
    repeated: bool = False  # whether the next signal is one that was repeated, as that has not happened
    lock: Lock = field(default_factory=Lock)  # held while one is repeated


answers = Answers()

_listeners: list[Listener] = []
"""Those of `handling_signals`, the innermost last."""


@contextmanager
def handling_signals(
    handler: Callable[[int], object], during_call: Listener = lambda number: False
) -> Iterator[None]:
    """Handle `SIGNALS` with a function, except those that the parent process has set to be ignored.

    The handlers before are restored at the end.

    Parameters
    ----------
    handler : callable
        Called in the main thread.
    during_call : callable
        Called first, in another thread, with a signal that the main thread does not handle in time; if it returns True,
        it has answered the signal, and the main thread may go on. If none does, the process is ended.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        answers.latest_s = time.monotonic()
        repeated, answers.repeated = answers.repeated, False
        if repeated and (answers.stop is None or _is_handled(answers.stop)):
            return
        try:
            handler(number)
        except Stop as stop:
            answers.stop = stop
            raise

    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    _listeners.append(during_call)
    previous_handlers = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        _listeners.remove(during_call)
        with answers.lock:  # a repeated signal is not for the handlers before
            answers.stop = None
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)


def _is_handled(error: BaseException) -> bool:
    """Return whether this thread is in an ``except`` or ``finally`` that an exception has come to."""
    found = sys.exc_info()[1]
    while found not in (None, error):
        found = found.__context__
    return found is error


def waiting(patience: int = 1) -> Listener:
    """Return a listener that lets so many signals wait for the end of a call; the next one ends the process."""
    numbers = count(1)
    return lambda number: next(numbers) <= patience


@contextmanager
def keeping_stop() -> Iterator[None]:
    """Raise the `Stop` of a signal behind the block if the block has swallowed it.

    Packages do that while they are imported: by a bare ``except``, or as an import that failed.
    """
    stops: list[Stop] = []

    def stop(number: int) -> None:
        stops.append(signal_stop(number))
        raise stops[-1]

    with handling_signals(stop):
        yield
    if stops:
        raise stops[0]


@contextmanager
def deferring_stop(patience: int = 1) -> Iterator[Callable[[], None]]:
    """Make the last part of a block one that the first signals do not interrupt; a further one stops it at once.

    The `Stop` of the first signal is raised at the end of the block, with the error of the block if there is one.

    Parameters
    ----------
    patience : int
        Number of signals that wait.

    Yields
    ------
    callable
        Begins that part.
    """
    stops: list[Stop] = []

    def on_signal(number: int) -> None:
        stops.append(signal_stop(number))
        if len(stops) > patience:
            raise stops[-1]

    def begin() -> None:
        if threading.current_thread() is threading.main_thread():
            handling.enter_context(handling_signals(on_signal, waiting(patience)))

    try:
        with ExitStack() as handling:
            yield begin
    except Stop:
        raise
    except BaseException as error:
        if stops:
            raise Stop(stops[0].code, f"{stops[0]}; {error}") from error
        raise
    if stops:
        raise stops[0]


_savers: list[Callable[[str], str]] = []
"""Functions that save what has been done, the innermost last."""
_saving = Lock()
"""Held by the thread that calls them."""


@contextmanager
def saving_on_stop(save: Callable[[str], str]) -> Iterator[None]:
    """Save what has been done if the block is stopped.

    Parameters
    ----------
    save : callable
        Called with the message of the stop, in the main thread, or in another one while the main thread is in a call
        that takes long. It returns the message with what was saved.

    Raises
    ------
    Stop
        The stop of the block, with that message.
    """
    _savers.append(save)
    try:
        yield
    except Stop as stop:
        answers.stop = None
        with _saving:
            raise Stop(stop.code, save(str(stop))) from None
    finally:
        _savers.remove(save)


def end_now(stop: Stop) -> NoReturn:
    """End the process in the middle of its work, with the message and the code of a stop."""
    remove_own()
    before = CLEAR_LINE if is_terminal(sys.stderr) else ""  # in place of the bar
    with suppress(OSError):
        os.write(2, f"{before}{message_text(f'harken: {stop}')}\n".encode(errors="replace"))
    os._exit(stop.code)


def print_unless_stop(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception with its traceback, but for a `Stop`: compiled packages print those that they drop."""
    if not issubclass(kind, Stop):
        sys.__excepthook__(kind, error, trace)


def stop_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat a signal whose `Stop` was raised where Python drops exceptions, as in a finalizer or a callback of C.

    It is repeated a little later, as it would be dropped again before this function has returned.
    """
    if isinstance(unraisable.exc_value, Stop):
        number = signal.Signals(unraisable.exc_value.code - FIRST_SIGNAL_CODE)
        repeat = Timer(REPEAT_S, interrupt_main, [number])
        repeat.daemon = True
        repeat.start()
    else:
        sys.__unraisablehook__(unraisable)


def watch_signals() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))  # its signals are not ours
    with suppress(RuntimeError):  # no thread may start: whatever needs one more says so
        Thread(target=_watch, args=(reader,), name="harken signals", daemon=True).start()


def _watch(reader: int) -> NoReturn:
    """End the process if the main thread does not answer a signal: it is in a call that takes long.

    Repeat a signal whose `Stop` has not come to any block: PyAV runs bytecode while it makes the traceback of an error,
    and drops what a signal handler raises there.
    """
    while True:
        numbers = [number for number in os.read(reader, 64) if number in SIGNALS]
        came_s = time.monotonic()
        time.sleep(ANSWER_S)
        if not numbers:
            continue
        if answers.latest_s > came_s - ANSWER_S:
            with answers.lock:
                if answers.stop:
                    answers.repeated = True
                    interrupt_main(signal.Signals(numbers[0]))
        elif not answers.repeated and not any(listen(numbers[0]) for listen in _listeners[::-1]):
            stop = signal_stop(numbers[0])
            _saving.acquire()  # never released: the main thread must not go on
            for save in reversed(_savers):
                with suppress(Exception):
                    stop = Stop(stop.code, save(str(stop)))
            end_now(stop)

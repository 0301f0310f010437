"""The process of the command: its standard streams, its end, and signals that come while the main thread computes.

Python runs signal handlers in the main thread only, between two instructions. A call into a runtime can take seconds,
so a thread watches the signals too, and ends the process where the main thread does not answer.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock, Thread, Timer
from types import TracebackType
from typing import NoReturn

from harken.cli.exits import FIRST_SIGNAL_CODE, SIGNALS, Stop, answers, signal_listeners, signal_stop
from harken.cli.terminal import is_terminal, message_text, open_closed_streams
from harken.files import remove_own

ANSWER_S = 0.7
"""Time that the main thread has to answer a signal."""
REPEAT_S = 0.02
"""Time after which a signal is repeated that was dropped."""


class _StopSaver:
    """A function that saves what has been done, called by the main thread or by the watching one.

    Parameters
    ----------
    save : callable
        Saves, and turns the message of the stop into one that says what was saved.
    """

    def __init__(self, save: Callable[[str], str]) -> None:
        self.lock = Lock()
        self._save = save

    def __call__(self, stop: Stop) -> Stop:
        return Stop(stop.code, self._save(str(stop)))


_savers: list[_StopSaver] = []


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
    saver = _StopSaver(save)
    _savers.append(saver)
    try:
        yield
    except Stop as stop:
        with saver.lock:
            raise saver(stop) from None
    finally:
        _savers.remove(saver)


def run() -> NoReturn:
    """Run the command line as a process, and end it."""
    _replace_closed_streams()
    sys.excepthook, sys.unraisablehook = _print_unless_stop, _stop_again
    from harken.cli.root import exit_code_of_flush, main

    if os.name == "posix":  # elsewhere only sockets can wake the thread
        _watch_signals()
    code = main()
    flush_code = exit_code_of_flush()
    if flush_code or code > FIRST_SIGNAL_CODE:
        remove_own()  # a signal can come before a block that removes its file has begun
        # `sys.exit` would flush once more what cannot be written, and wait for threads that still load a model.
        os._exit(code or flush_code)
    sys.exit(code)


def _end(stop: Stop) -> NoReturn:
    remove_own()
    restore_terminal = "\r\033[K\033[?25h" if is_terminal(sys.stderr) else ""  # remove the bar, show the cursor
    with suppress(OSError):
        os.write(2, f"{restore_terminal}{message_text(f'harken: {stop}')}\n".encode(errors="replace"))
    os._exit(stop.code)


def _replace_closed_streams() -> None:
    """Put streams in place of those that the parent process closed: writing to standard output fails, as it should."""
    open_closed_streams()
    if sys.stdout is None:
        sys.stdout = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _print_unless_stop(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception with its traceback, but for a `Stop`: compiled packages print those that they drop."""
    if not issubclass(kind, Stop):
        sys.__excepthook__(kind, error, trace)


def _stop_again(unraisable: sys.UnraisableHookArgs) -> None:
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


def _watch_signals() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))  # its signals are not ours
    Thread(target=_watch, args=(reader,), name="harken signals", daemon=True).start()


def _watch(reader: int) -> NoReturn:
    """End the process if the main thread does not answer a signal: it is in a call that takes long."""
    while True:
        numbers = [number for number in os.read(reader, 64) if number in SIGNALS]
        came_s = time.monotonic()
        time.sleep(ANSWER_S)
        answered = answers.latest_s > came_s - ANSWER_S
        if numbers and not answered and not any(listen(numbers[0]) for listen in signal_listeners[::-1]):
            stop = signal_stop(numbers[0])
            for saver in reversed(_savers):
                saver.lock.acquire()  # never released: the main thread must not go on
                with suppress(Exception):
                    stop = saver(stop)
            _end(stop)

"""Sound is taken in by a thread of its own, so that none is lost while the model computes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from queue import Empty, Full, Queue
from threading import Event, Thread
from types import FrameType, TracebackType
from typing import Self

from harken.cli.exits import Stop
from harken.cli.root import SIGNALS
from harken.cli.sources import BLOCK_S, LiveSource
from harken.contract import Floats

_QUEUE_S = 30.0  # whoever sends faster waits; longer than the slowest final pass over an utterance
_POLL_S = 0.1  # Windows tells of Ctrl-C only between two waits


class AudioReader:
    """The blocks of a source, until it ends or a signal ends it.

    The first signal ends the sound and nothing else: the caller can finish what it has heard. The next one raises
    `Stop`, wherever the caller is.

    Parameters
    ----------
    source : Source

    Attributes
    ----------
    stop : Stop or None
        What ended it early.
    """

    def __init__(self, source: LiveSource) -> None:
        self.stop: Stop | None = None
        self._source = source
        self._queue: Queue[Floats | BaseException | None] = Queue(round(_QUEUE_S / BLOCK_S))
        self._stopped = Event()
        self._thread = Thread(target=self._read_source, name="harken intake", daemon=True)

    def __enter__(self) -> Self:
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous_handlers = {number: signal.signal(number, self._on_signal) for number in handled}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._thread.join(3 * _POLL_S)  # one that waits for a pipe is left behind

    @property
    def lost_s(self) -> float:
        """Seconds that the source has lost so far."""
        return self._source.lost_s

    def __iter__(self) -> Iterator[Floats]:
        """Blocks in order; what had been heard before a signal is among them.

        Raises
        ------
        AudioError
            What the source raised, behind its last block.
        """
        while True:
            if self.stop:
                self._stopped.set()
                if not self._source.live:
                    return
            try:
                block = self._queue.get(timeout=_POLL_S)
            except Empty:
                if self.stop:
                    return
                continue
            if block is None:
                return
            if isinstance(block, BaseException):
                raise block
            yield block

    def _read_source(self) -> None:
        """Work of the thread."""
        end: BaseException | None = None
        try:
            with closing(self._source.blocks()) as blocks:
                for block in blocks:
                    if len(block) and not self._put(block):
                        break
        except BaseException as error:  # goes to the caller, whatever it is
            end = error
        self._put(end)

    def _put(self, block: Floats | BaseException | None) -> bool:
        """Put it into the queue; False if nobody wants it any more."""
        while not self._stopped.is_set():
            try:
                self._queue.put(block, timeout=_POLL_S)
            except Full:
                continue
            return True
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        stop = Stop(128 + number, SIGNALS[signal.Signals(number)])
        if self.stop:
            raise stop
        self.stop = stop

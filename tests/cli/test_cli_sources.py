"""The thread that reads a source: its buffer, its end, and signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from itertools import islice

import numpy as np
import pytest

from harken.cli.exits import Stop
from harken.cli.signals import signal_listeners
from harken.cli.sources import AudioReader
from harken.contract import Floats
from harken.errors import AudioError

BLOCK = np.ones(800, np.float32)


class EndlessSource:
    """A source that never ends.

    Attributes
    ----------
    made : int
        Number of blocks so far.
    closed : bool
        Whether the reader has closed it.
    """

    name, lost_s = "endless", 0.0

    def __init__(self, *, live: bool, before: Callable[[int], None] = lambda made: None) -> None:
        self.live, self.made, self.closed = live, 0, False
        self._before = before

    def blocks(self) -> Generator[Floats]:
        try:
            while True:
                self._before(self.made)
                self.made += 1
                yield BLOCK * self.made
        finally:
            self.closed = True


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "harken audio reader":
            thread.join(5)
            assert not thread.is_alive()


@pytest.mark.parametrize(("live", "blocks"), [(False, 600), (True, 12_000)])
def test_reader_buffers_30_s_of_a_file_and_10_minutes_of_a_live_source(live, blocks):
    full = threading.Event()

    def before(made):
        if made == blocks + 2:
            full.set()

    source = EndlessSource(live=live, before=before)
    with AudioReader(source) as reader:
        assert [block[0] for block in islice(reader, 2)] == [1, 2]
        assert full.wait(30)
        assert source.made <= blocks + 3
    wait_for_threads()
    assert source.closed


def test_source_error_comes_after_its_blocks():
    def before(made):
        if made == 3:
            raise AudioError("gone")

    with AudioReader(EndlessSource(live=True, before=before)) as reader:
        blocks = iter(reader)
        assert len([*islice(blocks, 3)]) == 3
        with pytest.raises(AudioError, match="gone"):
            next(blocks)


def test_live_audio_is_recorded_however_far_behind_the_caller_is():
    recorded: list[float] = []
    twenty = threading.Event()
    source = EndlessSource(live=True, before=lambda made: twenty.set() if made == 20 else None)
    with AudioReader(source, lambda block: recorded.append(float(block[0]))) as reader:
        assert len([*islice(reader, 1)]) == 1
        assert twenty.wait(5)
    wait_for_threads()
    assert len(recorded) >= 20
    assert recorded == [*range(1, len(recorded) + 1)]


def test_file_is_recorded_as_far_as_it_is_read():
    recorded: list[float] = []
    twenty = threading.Event()
    source = EndlessSource(live=False, before=lambda made: twenty.set() if made == 20 else None)
    with AudioReader(source, lambda block: recorded.append(float(block[0]))) as reader:
        assert len([*islice(reader, 2)]) == 2
        assert twenty.wait(5)
    assert recorded == [1, 2]


def test_empty_blocks_are_skipped():
    class Sparse(EndlessSource):
        def blocks(self):
            yield from (BLOCK[:0], BLOCK, BLOCK[:0], 2 * BLOCK)

    with AudioReader(Sparse(live=True)) as reader:
        assert [block[0] for block in reader] == [1, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
class TestSignals:
    @staticmethod
    def interrupted(*, live: bool) -> tuple[list[float], EndlessSource, AudioReader]:
        """Return the blocks read if the signal arrives at the second block, when ten have been made."""
        ten = threading.Event()
        source = EndlessSource(live=live, before=lambda made: ten.set() if made == 10 else None)
        blocks_read = []
        with AudioReader(source) as reader:
            for block in reader:
                blocks_read.append(float(block[0]))
                if len(blocks_read) == 2:
                    assert ten.wait(5)
                    os.kill(os.getpid(), signal.SIGINT)
        return blocks_read, source, reader

    def test_signal_keeps_blocks_of_a_live_source(self):
        blocks_read, source, reader = self.interrupted(live=True)
        assert reader.stop.code == 130
        assert 10 <= len(blocks_read) <= source.made
        assert blocks_read == [*range(1, len(blocks_read) + 1)]

    def test_signal_drops_the_rest_of_a_file(self):
        blocks_read, source, reader = self.interrupted(live=False)
        assert (reader.stop.code, blocks_read) == (130, [1, 2])
        wait_for_threads()
        assert source.closed

    def test_signal_closes_the_source_while_the_caller_is_busy(self):
        recorded: list[float] = []
        source = EndlessSource(live=True)
        with AudioReader(source, lambda block: recorded.append(float(block[0]))) as reader:
            blocks = iter(reader)
            blocks_read = [float(next(blocks)[0])]
            os.kill(os.getpid(), signal.SIGINT)
            wait_for_threads()  # the caller takes no block meanwhile
            assert source.closed
            blocks_read += [float(block[0]) for block in blocks]
        assert blocks_read == recorded

    def test_second_signal_raises_stop(self):
        with AudioReader(EndlessSource(live=True)) as reader:
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(Stop):
                os.kill(os.getpid(), signal.SIGINT)
        assert reader.stop.code == 130

    def test_signal_during_a_long_call_ends_the_audio(self):
        source = EndlessSource(live=True)
        with AudioReader(source) as reader:
            assert [listen(signal.SIGINT) for listen in signal_listeners] == [
                True
            ]  # as the thread that watches does
            wait_for_threads()
            assert source.closed
            os.kill(os.getpid(), signal.SIGINT)  # the main thread handles the same signal after the call
            assert reader.stop.code == 130
            assert [listen(signal.SIGINT) for listen in signal_listeners] == [False]
            with pytest.raises(Stop):
                os.kill(os.getpid(), signal.SIGINT)
        assert not signal_listeners

    def test_ignored_signal_stays_ignored(self):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with AudioReader(EndlessSource(live=True)) as reader:
                os.kill(os.getpid(), signal.SIGINT)
                assert len([*islice(reader, 3)]) == 3
                assert reader.stop is None
        finally:
            signal.signal(signal.SIGINT, before)

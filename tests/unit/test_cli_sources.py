"""Sound is taken in beside the work: how far ahead, what ends it, and what is left behind."""

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
from harken.cli.sources import AudioReader
from harken.contract import Floats
from harken.errors import AudioError

BLOCK = np.ones(800, np.float32)


class Endless:
    """A source that is always there.

    Attributes
    ----------
    given : int
        Blocks so far.
    closed : bool
        Whether nobody listens any more.
    """

    name, lost_s = "endless", 0.0

    def __init__(self, *, live: bool, before: Callable[[int], None] = lambda given: None) -> None:
        self.live, self.given, self.closed = live, 0, False
        self._before = before

    def blocks(self) -> Generator[Floats]:
        try:
            while True:
                self._before(self.given)
                self.given += 1
                yield BLOCK * self.given
        finally:
            self.closed = True


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "harken audio reader":
            thread.join(5)
            assert not thread.is_alive()


def test_reader_buffers_at_most_30_s() -> None:
    full = threading.Event()

    def before(given: int) -> None:
        if given == 602:
            full.set()

    source = Endless(live=False, before=before)
    with AudioReader(source) as intake:
        assert [block[0] for block in islice(intake, 2)] == [1, 2]
        assert full.wait(5)
        assert source.given <= 603
    wait_for_threads()
    assert source.closed


def test_source_error_comes_after_its_blocks() -> None:
    def before(given: int) -> None:
        if given == 3:
            raise AudioError("gone")

    with AudioReader(Endless(live=True, before=before)) as intake:
        blocks = iter(intake)
        assert len([*islice(blocks, 3)]) == 3
        with pytest.raises(AudioError, match="gone"):
            next(blocks)


def test_empty_blocks_are_skipped() -> None:
    class Sparse(Endless):
        def blocks(self) -> Generator[Floats]:
            yield from (BLOCK[:0], BLOCK, BLOCK[:0], 2 * BLOCK)

    with AudioReader(Sparse(live=True)) as intake:
        assert [block[0] for block in intake] == [1, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
class TestSignals:
    @staticmethod
    def interrupted(*, live: bool) -> tuple[list[float], Endless, AudioReader]:
        """What comes out if the signal arrives at the second block, when there are ten."""
        ten = threading.Event()
        source = Endless(live=live, before=lambda given: ten.set() if given == 10 else None)
        heard = []
        with AudioReader(source) as intake:
            for block in intake:
                heard.append(float(block[0]))
                if len(heard) == 2:
                    assert ten.wait(5)
                    os.kill(os.getpid(), signal.SIGINT)
        return heard, source, intake

    def test_signal_keeps_blocks_of_a_live_source(self) -> None:
        heard, source, intake = self.interrupted(live=True)
        assert intake.stop.code == 130
        assert 10 <= len(heard) <= source.given
        assert heard == [*range(1, len(heard) + 1)]

    def test_signal_drops_the_rest_of_a_file(self) -> None:
        heard, source, intake = self.interrupted(live=False)
        assert (intake.stop.code, heard) == (130, [1, 2])
        wait_for_threads()
        assert source.closed

    def test_second_signal_raises_stop(self) -> None:
        with AudioReader(Endless(live=True)) as intake:
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(Stop):
                os.kill(os.getpid(), signal.SIGINT)
        assert intake.stop.code == 130

    def test_ignored_signal_stays_ignored(self) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with AudioReader(Endless(live=True)) as intake:
                os.kill(os.getpid(), signal.SIGINT)
                assert len([*islice(intake, 3)]) == 3
                assert intake.stop is None
        finally:
            signal.signal(signal.SIGINT, before)

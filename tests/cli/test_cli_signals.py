"""Signals that wait until something has been finished."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from harken.cli.exits import Stop
from harken.cli.signals import StopDeferral, finishing_calls, keeping_stop, signal_listeners
from harken.errors import OutputError

TERMINATED, INTERRUPTED = signal.SIGTERM, signal.SIGINT


def work(done, patience, signals, error=None):
    """Write something, in a block in which signals and an error come."""
    with StopDeferral(patience) as deferral:
        deferral.begin()
        for number in signals:
            signal.raise_signal(number)
        if error:
            raise error
        done.append("written")


@pytest.mark.parametrize(
    ("patience", "signals", "error", "written", "message"),
    [
        (1, [TERMINATED], None, ["written"], "terminated"),
        (2, [TERMINATED, INTERRUPTED], None, ["written"], "terminated"),
        (1, [TERMINATED, INTERRUPTED], None, [], "interrupted"),
        (1, [TERMINATED], OutputError("a.srt: is full"), [], "terminated; a.srt: is full"),
    ],
)
def test_block_is_finished_unless_more_signals_come(patience, signals, error, written, message):
    done = []
    with pytest.raises(Stop) as caught:
        work(done, patience, signals, error)
    assert (done, str(caught.value)) == (written, message)
    assert caught.value.code == 128 + (INTERRUPTED if message == "interrupted" else TERMINATED)


def test_stop_that_a_package_swallows_is_raised_behind_the_block():
    def import_a_package_with_a_bare_except():
        with keeping_stop(), suppress(BaseException):
            signal.raise_signal(TERMINATED)

    with pytest.raises(Stop, match="terminated"):
        import_a_package_with_a_bare_except()


def test_first_signals_wait_for_a_call_that_takes_long():
    with finishing_calls(2):
        (answer,) = signal_listeners
        assert [answer(INTERRUPTED) for _ in range(3)] == [True, True, False]
    assert not signal_listeners

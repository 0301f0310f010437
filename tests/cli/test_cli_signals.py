"""Signals that a package swallows, and signals during a call that takes long."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from harken.cli.exits import Stop
from harken.cli.signals import finishing_calls, keeping_stop, signal_listeners

TERMINATED, INTERRUPTED = signal.SIGTERM, signal.SIGINT


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

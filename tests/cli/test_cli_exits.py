"""Signals that wait until something has been finished."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from harken.cli.exits import Stop, describe_error
from harken.cli.signals import StopDeferral, finishing_calls, keeping_stop, signal_listeners
from harken.errors import OutputError


def finish(patience: int, *signals: signal.Signals, error: Exception | None = None) -> list[str]:
    """Return what was done in a block in which signals and an error come."""
    done: list[str] = []
    with pytest.raises(Stop) as caught:
        _finish(patience, signals, error, done)
    return [*done, f"{caught.value.code}: {caught.value}"]


def _finish(
    patience: int, signals: tuple[signal.Signals, ...], error: Exception | None, done: list[str]
) -> None:
    with StopDeferral(patience) as deferral:
        deferral.begin()
        for number in signals:
            signal.raise_signal(number)
        if error:
            raise error
        done.append("written")


def test_first_signal_waits_for_the_end_of_the_block() -> None:
    assert finish(1, signal.SIGTERM) == ["written", "143: terminated"]
    assert finish(2, signal.SIGTERM, signal.SIGINT) == ["written", "143: terminated"]


def test_further_signal_stops_at_once() -> None:
    assert finish(1, signal.SIGTERM, signal.SIGINT) == ["130: interrupted"]


def test_error_in_the_block_is_said_with_the_stop() -> None:
    error = OutputError("talk.srt: cannot be written")
    assert finish(1, signal.SIGTERM, error=error) == ["143: terminated; talk.srt: cannot be written"]


def test_stop_that_a_package_swallows_is_raised_behind_the_block() -> None:
    with pytest.raises(Stop, match="terminated"):
        _import_a_package_with_a_bare_except()


def _import_a_package_with_a_bare_except() -> None:
    with keeping_stop(), suppress(BaseException):
        signal.raise_signal(signal.SIGTERM)


def test_first_signals_wait_for_a_call_that_takes_long() -> None:
    with finishing_calls(2):
        (answer,) = signal_listeners
        assert [answer(signal.SIGINT) for _ in range(3)] == [True, True, False]
    assert not signal_listeners


def test_notes_of_an_error_are_on_its_line() -> None:
    error = ZeroDivisionError("by chance")
    error.add_note("what was done is in talk.srt.partial")
    assert describe_error(error).endswith("shows the traceback; what was done is in talk.srt.partial")
    assert describe_error(MemoryError()) == "not enough memory"

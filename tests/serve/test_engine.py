"""The engine: whose turn it is, and what becomes of jobs that end, are cancelled or abandoned."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from threading import Event
from time import monotonic

import pytest

from harken.serve.work.engine import Engine

WAIT_S = 20.0
"""Longest wait for the engine's thread; only a failure takes as long."""


class ScriptedJob:
    """A job of some steps, each of which takes some of the fake clock's time and is noted in a list."""

    def __init__(
        self,
        name: str,
        steps: int,
        history: list[str],
        *,
        live: bool = False,
        step_s: float = 1.0,
        since_s: float = 0.0,
    ) -> None:
        self.name, self.live, self.history = name, live, history
        self.service_s = 0.0
        self.reading = True
        self.steps, self.step_s, self.since_s = steps, step_s, since_s
        self.abandoned: str | None = None
        self.ended = Event()
        self.on_step: Callable[[], None] = lambda: None
        self.clock: FakeClock | None = None

    @property
    def done(self) -> bool:
        return self.steps == 0

    def waiting_since(self) -> float | None:
        return self.since_s if self.reading else None

    def step(self) -> None:
        self.history.append(self.name)
        self.steps -= 1
        assert self.clock
        self.clock.now_s += self.step_s
        self.on_step()
        if self.done:
            self.ended.set()

    def abandon(self, reason: str) -> None:
        self.abandoned = reason


class FakeClock:
    """A clock that only jobs move on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run_jobs(jobs: list[ScriptedJob]) -> Engine:
    """Give all jobs to an engine that is held up by a first one, and wait until they have ended."""
    clock = FakeClock()
    engine, gate = Engine("test", clock=clock), Event()
    first = ScriptedJob("gate", 1, [], step_s=0.0)
    first.clock, first.on_step = clock, lambda: gate.wait(WAIT_S) and None
    engine.add(first)
    for job in jobs:
        job.clock = clock
        engine.add(job)
    gate.set()
    for job in jobs:
        assert job.ended.wait(WAIT_S)
    engine.stop("over")
    return engine


def test_files_take_turns_by_the_time_that_they_have_been_served() -> None:
    history: list[str] = []
    run_jobs([ScriptedJob("slow", 2, history, step_s=3.0), ScriptedJob("quick", 6, history, since_s=-1.0)])
    assert history == ["slow", *["quick"] * 3, "slow", *["quick"] * 3]


def test_a_short_file_waits_for_one_step_of_a_long_one() -> None:
    history: list[str] = []
    long, short = ScriptedJob("long", 50, history), ScriptedJob("short", 1, history, since_s=10.0)
    clock = FakeClock()
    engine = Engine("test", clock=clock)
    long.clock = short.clock = clock

    def add_short() -> None:
        if len(history) == 20:
            engine.add(short)

    long.on_step = add_short
    engine.add(long)
    assert long.ended.wait(WAIT_S)
    engine.stop("over")
    assert history[20] == "short"


def test_a_stream_of_short_files_does_not_starve_a_long_one() -> None:
    history: list[str] = []
    clock = FakeClock()
    engine = Engine("test", clock=clock)
    long = ScriptedJob("long", 10, history)
    long.clock = clock
    shorts = [ScriptedJob(f"short {i}", 1, history, since_s=float(i)) for i in range(30)]

    def add_next(index: int) -> None:
        if index < len(shorts):
            shorts[index].clock = clock
            shorts[index].on_step = lambda: add_next(index + 1)
            engine.add(shorts[index])

    engine.add(long)
    add_next(0)
    assert long.ended.wait(WAIT_S)
    assert shorts[-1].ended.wait(WAIT_S)
    engine.stop("over")
    turns_of_long = [i for i, name in enumerate(history) if name == "long"]
    assert max(b - a for a, b in pairwise(turns_of_long)) <= 4, "it has its share of the time"


def test_a_file_that_waited_for_its_reader_makes_up_for_nothing() -> None:
    history: list[str] = []
    held = ScriptedJob("held", 4, history)
    other = ScriptedJob("other", 8, history)
    held.reading = False

    def let_read() -> None:
        held.reading = len(history) >= 4

    other.on_step = let_read
    run_jobs([held, other])
    assert history[:4] == ["other"] * 4
    assert history[4:] == [*["held"] * 2, "other", "held", "other", "held", *["other"] * 2]


def test_live_streams_go_first_by_waiting_time() -> None:
    history: list[str] = []
    run_jobs(
        [
            ScriptedJob("file", 2, history),
            ScriptedJob("late stream", 1, history, live=True, since_s=2.0),
            ScriptedJob("early stream", 1, history, live=True, since_s=1.0),
        ]
    )
    assert history == ["early stream", "late stream", "file", "file"]


def test_the_engine_counts_the_service_of_jobs() -> None:
    job = ScriptedJob("file", 3, [], step_s=2.0)
    run_jobs([job])
    assert job.service_s == 6.0


def test_jobs_are_abandoned_when_the_engine_stops() -> None:
    job = ScriptedJob("file", 10**9, [])
    clock = FakeClock()
    engine = Engine("test", clock=clock)
    job.clock = clock
    engine.add(job)
    start_s = monotonic()
    engine.stop("the server has ended")
    assert job.abandoned == "the server has ended"
    assert engine.idle
    assert monotonic() - start_s < WAIT_S
    with pytest.raises(RuntimeError, match="stopped"):
        engine.add(job)


def test_a_step_that_fails_ends_its_job_alone() -> None:
    history: list[str] = []
    broken, other = ScriptedJob("broken", 2, history, since_s=1.0), ScriptedJob("other", 2, history)

    def fail() -> None:
        broken.steps = 0
        raise ValueError("unforeseen")

    broken.on_step = fail
    clock = FakeClock()
    broken.clock = other.clock = clock
    engine = Engine("test", clock=clock)
    engine.add(broken)
    engine.add(other)
    assert other.ended.wait(WAIT_S)
    engine.stop("over")
    assert broken.abandoned
    assert "details" in broken.abandoned

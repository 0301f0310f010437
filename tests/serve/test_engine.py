"""The engine: whose turn it is, and what becomes of jobs that end, are cancelled or abandoned."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event

import pytest

from harken.serve.work.engine import Engine

WAIT_S = 20.0
"""Longest wait for the engine's thread; only a failure takes as long."""


@dataclass(eq=False)
class ScriptedJob:
    """A job of some steps; each is noted by its name, and takes some of the time of a clock that only jobs move on."""

    name: str
    steps: int
    history: list[str] = field(default_factory=list)
    step_s: float = 1.0
    since_s: float = 0.0
    live: bool = False
    on_step: Callable[[], object] = lambda: None

    now_s = 0.0
    """The time of all jobs of a test."""

    def __post_init__(self):
        self.service_s, self.reading = 0.0, True
        self.abandoned = ""
        self.ended = Event()

    @property
    def done(self):
        return self.steps == 0

    def waiting_since(self):
        return self.since_s if self.reading else None

    def step(self):
        self.history.append(self.name)
        self.steps -= 1
        ScriptedJob.now_s += self.step_s
        self.on_step()
        if self.done:
            self.ended.set()

    def abandon(self, reason):
        self.abandoned = reason


@contextmanager
def running():
    engine = Engine("test", clock=lambda: ScriptedJob.now_s)
    yield engine
    engine.stop("over")


def run_jobs(*jobs):
    """Give all jobs to an engine that is held up by a first one, and wait until they have ended."""
    gate = Event()
    with running() as engine:
        for job in (ScriptedJob("gate", 1, step_s=0.0, on_step=lambda: gate.wait(WAIT_S)), *jobs):
            engine.add(job)
        gate.set()
        for job in jobs:
            assert job.ended.wait(WAIT_S)


def test_files_take_turns_by_the_time_that_they_have_been_served():
    history: list[str] = []
    slow = ScriptedJob("slow", 2, history, step_s=3.0)
    run_jobs(slow, ScriptedJob("quick", 6, history, since_s=-1.0))
    assert history == ["slow", *["quick"] * 3, "slow", *["quick"] * 3]
    assert slow.service_s == 6.0


def test_a_short_file_waits_for_one_step_of_a_long_one():
    history: list[str] = []
    short = ScriptedJob("short", 1, history, since_s=10.0)
    with running() as engine:
        long = ScriptedJob("long", 50, history, on_step=lambda: len(history) == 20 and engine.add(short))
        engine.add(long)
        assert long.ended.wait(WAIT_S)
    assert history[20] == "short"


def test_a_stream_of_short_files_does_not_starve_a_long_one():
    history: list[str] = []
    long = ScriptedJob("long", 10, history)
    shorts = [ScriptedJob("short", 1, history, since_s=float(i)) for i in range(30)]
    with running() as engine:
        for job, following in pairwise(shorts):
            job.on_step = lambda following=following: engine.add(following)
        engine.add(long)
        engine.add(shorts[0])
        for job in (long, shorts[-1]):
            assert job.ended.wait(WAIT_S)
    turns_of_long = [i for i, name in enumerate(history) if name == "long"]
    assert max(b - a for a, b in pairwise(turns_of_long)) <= 4, "it has its share of the time"


def test_a_file_that_waited_for_its_reader_makes_up_for_nothing():
    history: list[str] = []
    held = ScriptedJob("held", 4, history)
    held.reading = False
    run_jobs(
        held, ScriptedJob("other", 8, history, on_step=lambda: setattr(held, "reading", len(history) >= 4))
    )
    assert history[:4] == ["other"] * 4
    assert history[4:] == [*["held"] * 2, "other", "held", "other", "held", *["other"] * 2]


def test_live_streams_go_first_by_waiting_time():
    history: list[str] = []
    run_jobs(
        ScriptedJob("file", 2, history),
        ScriptedJob("late stream", 1, history, live=True, since_s=2.0),
        ScriptedJob("early stream", 1, history, live=True, since_s=1.0),
    )
    assert history == ["early stream", "late stream", "file", "file"]


def test_jobs_are_abandoned_when_the_engine_stops():
    job = ScriptedJob("file", 10**9)
    with running() as engine:
        engine.add(job)
        engine.stop("the server has ended")
        assert job.abandoned == "the server has ended"
        assert engine.idle
        with pytest.raises(RuntimeError, match="stopped"):
            engine.add(job)


def test_a_step_that_fails_ends_its_job_alone():
    def fail():
        broken.steps = 0
        raise ValueError("unforeseen")

    broken = ScriptedJob("broken", 2, since_s=1.0, on_step=fail)
    other = ScriptedJob("other", 2)
    with running() as engine:
        engine.add(broken)
        engine.add(other)
        assert other.ended.wait(WAIT_S)
    assert "details" in broken.abandoned

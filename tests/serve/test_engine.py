"""The engine: whose turn it is, and what becomes of jobs that end, are cancelled or abandoned."""

from collections.abc import Callable
from dataclasses import dataclass
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
    step_s: float = 1.0
    since_s: float = 0.0
    live: bool = False
    on_step: Callable[[], object] = lambda: None

    now_s = 0.0  # the time of all jobs

    def __post_init__(self):
        self.service_s, self.reading, self.abandoned = 0.0, True, ""
        self.ended, self.history = Event(), []

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


def run_jobs(*jobs, later=()):
    """Give jobs to an engine that is held up by a first one; return the names of the steps up to the end of all jobs.

    Those that come later are given to it by others.
    """
    gate, history = Event(), []
    engine = Engine("test", clock=lambda: ScriptedJob.now_s)
    for job in (*jobs, *later):
        job.engine, job.history = engine, history
    for job in (ScriptedJob("gate", 1, step_s=0.0, on_step=lambda: gate.wait(WAIT_S)), *jobs):
        engine.add(job)
    gate.set()
    for job in (*jobs, *later):
        assert job.ended.wait(WAIT_S)
    engine.stop("over")
    return history


def test_files_take_turns_by_the_time_that_they_have_been_served():
    slow = ScriptedJob("slow", 2, step_s=3.0)
    history = run_jobs(slow, ScriptedJob("quick", 6, since_s=-1.0))
    assert history == ["slow", *["quick"] * 3, "slow", *["quick"] * 3]
    assert slow.service_s == 6.0


def test_a_short_file_waits_for_one_step_of_a_long_one():
    short = ScriptedJob("short", 1, since_s=10.0)
    long = ScriptedJob("long", 50, on_step=lambda: long.steps == 30 and long.engine.add(short))
    assert run_jobs(long, later=[short])[20] == "short"


def test_a_stream_of_short_files_does_not_starve_a_long_one():
    shorts = [ScriptedJob("short", 1, since_s=float(i)) for i in range(30)]
    for job, following in pairwise(shorts):
        job.on_step = lambda job=job, following=following: job.engine.add(following)
    history = run_jobs(ScriptedJob("long", 10), shorts[0], later=shorts[1:])
    turns_of_long = [i for i, name in enumerate(history) if name == "long"]
    assert max(b - a for a, b in pairwise(turns_of_long)) <= 4, "it has its share of the time"


def test_a_file_that_waited_for_its_reader_makes_up_for_nothing():
    held = ScriptedJob("held", 4)
    held.reading = False
    other = ScriptedJob("other", 8, on_step=lambda: setattr(held, "reading", other.steps <= 4))
    expected = [*["other"] * 4, *["held"] * 2, "other", "held", "other", "held", *["other"] * 2]
    assert run_jobs(held, other) == expected


def test_live_streams_go_first_by_waiting_time():
    late, early = (ScriptedJob(f"stream of {since_s}", 1, live=True, since_s=since_s) for since_s in (2.0, 1.0))
    assert run_jobs(ScriptedJob("file", 2), late, early) == [early.name, late.name, "file", "file"]


def test_jobs_are_abandoned_when_the_engine_stops():
    job, engine = ScriptedJob("file", 10**9), Engine("test")
    engine.add(job)
    engine.stop("the server has ended")
    assert job.abandoned == "the server has ended"
    with pytest.raises(RuntimeError, match="stopped"):
        engine.add(job)


def test_a_step_that_fails_ends_its_job_alone():
    def fail():
        broken.steps = 0
        broken.ended.set()
        raise ValueError("unforeseen")

    broken, other = ScriptedJob("broken", 2, since_s=1.0, on_step=fail), ScriptedJob("other", 2)
    run_jobs(broken, other)
    assert "details" in broken.abandoned

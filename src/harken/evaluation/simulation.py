"""A live session in simulated real time: sound comes in blocks, nobody sleeps, and every call is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter, process_time
from typing import Protocol

from harken.contract import Floats
from harken.streaming import Event
from harken.types import SAMPLE_RATE


class LiveSessionProtocol(Protocol):
    """What can be fed with a stream: `harken.streaming` has one, a benchmark may have others."""

    def feed(self, samples: Floats) -> list[Event]:
        """Take the next samples, 16 kHz mono, and tell what came of it."""
        ...

    def close(self) -> list[Event]:
        """End the stream, and tell what is left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionTime:
    """When something was known.

    Attributes
    ----------
    unaware_s : float
        By the sound that it took alone, as if computing took no time: seconds of the stream.
    aware_s : float
        With the time that computing took, on the clock of a stream that goes on meanwhile.
    """

    computation_unaware_s: float
    computation_aware_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One call of a session.

    Attributes
    ----------
    samples : int
        Length of the stream so far.
    wall_s, cpu_s : float
        What the call took, on the wall and of all processors together.
    done_s : float
        When it was done, in seconds from the start of the stream in real time.
    events : tuple of Event
    """

    position_samples: int
    wall_s: float
    cpu_s: float
    done_s: float
    events: tuple[Event, ...]

    @property
    def lag_s(self) -> float:
        """How far the session was behind the sound when it was done."""
        return self.done_s - self.position_samples / SAMPLE_RATE

    def emission_time(self, event: Event) -> EmissionTime:
        """When an event of it was known."""
        return EmissionTime(
            computation_unaware_s=event.emitted_samples / SAMPLE_RATE, computation_aware_s=self.done_s
        )


def simulate_real_time(
    session: LiveSessionProtocol, samples: Floats, block_samples: int, *, one_core: bool = False
) -> Iterator[TimedCall]:
    """Feed a stream block by block, and close it.

    The queue of real time is simulated: a call begins once its block has been spoken and the call before it is
    done, and takes as long as it took here. Its events are known when it returns. That is what Ma et al. 2020,
    "SimulEval: an evaluation toolkit for simultaneous translation", call computation-aware; computation-unaware is
    how much sound had been read.

    Parameters
    ----------
    session : Live
    samples : ndarray of shape (samples,), float32
        At 16 kHz.
    block_samples : int
        Samples of a block; the last one may be shorter.
    one_core : bool
        Let the time of all processors together pass instead of that on the wall: as if one core did everything,
        whatever else the machine does meanwhile.

    Yields
    ------
    Step
        One a call, the last one of closing.
    """
    timed_call = TimedCall(position_samples=0, wall_s=0.0, cpu_s=0.0, done_s=0.0, events=())
    for start in range(0, len(samples), block_samples):
        block = samples[start : start + block_samples]
        timed_call = _time_call(partial(session.feed, block), start + len(block), timed_call.done_s, one_core)
        yield timed_call
    yield _time_call(session.close, len(samples), timed_call.done_s, one_core)


def _time_call(
    call: Callable[[], list[Event]], position_samples: int, previous_done_s: float, one_core: bool
) -> TimedCall:
    """Do a piece of work for which there is sound so far, at the earliest at `free_s`."""
    start_s, start_cpu_s = perf_counter(), process_time()
    events = call()
    wall_s, cpu_s = perf_counter() - start_s, process_time() - start_cpu_s
    return TimedCall(
        position_samples=position_samples,
        wall_s=wall_s,
        cpu_s=cpu_s,
        done_s=max(position_samples / SAMPLE_RATE, previous_done_s) + (cpu_s if one_core else wall_s),
        events=tuple(events),
    )

"""Live sessions that hear recordings, several settings in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np

from harken.api import Recognizer
from harken.contract import Floats
from harken.errors import AudioError
from harken.evaluation.display import Display, units_of
from harken.evaluation.joined import Reel, spoken
from harken.evaluation.latency import Latencies, latencies
from harken.evaluation.live import Live, simulate
from harken.evaluation.summary import Failure
from harken.results import Word
from harken.streaming import Committed, Interim, LoadChanged
from harken.text import resolve
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

Open = Callable[[TranscribeOptions], Live]
"""Opens a session with some options."""

WARM_UP_S = 5.0
"""How much of the first stream every session hears beforehand, so that what is compiled lazily is compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What something took, in seconds: on the wall, of all processors together, and of sound it was for."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    audio_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            wall_s=self.wall_s + other.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            audio_s=self.audio_s + other.audio_s,
        )

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing for a second of sound."""
        return self.wall_s / self.audio_s

    @property
    def cpu_factor(self) -> float:
        """Seconds of processors for a second of sound: what one core would need."""
        return self.cpu_s / self.audio_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTake:
    """One stream, heard live.

    Attributes
    ----------
    interim : str
        What was shown last of every utterance before its segments.
    final : str
        Text of the committed segments.
    latencies : Latencies
    retractions : int
        How often an utterance's committed text was taken back.
    flickered : int
        Words that were shown and then not any more.
    revised : int
        Words that were committed, and that the segments have otherwise or not at all.
    updates : int
        How many times text was shown.
    loads : int
        How often the session did less, or more again, so as to keep up.
    lag_s : float
        Furthest that the session was behind the sound.
    cost : Cost
    """

    interim: str
    final: str
    latencies: Latencies
    retractions: int
    flickered: int
    revised: int
    updates: int
    loads: int
    lag_s: float
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTurn:
    """One stream: the offline pass over it, and every session's passes by the names of their settings."""

    reel: Reel
    offline: str
    offline_cost: Cost
    takes: Mapping[str, tuple[LiveTake, ...]]


def take_live(
    recognizer: Recognizer,
    sessions: Mapping[str, Open],
    reels: Sequence[Reel],
    options: TranscribeOptions,
    *,
    block_samples: int,
    repeats: int,
    one_core: bool = False,
) -> Iterator[LiveTurn | Failure]:
    """Have sessions hear the same streams, so that a busy minute of the machine hits all of them.

    Parameters
    ----------
    recognizer : Recognizer
        Makes the offline pass, and finds out when words are spoken.
    sessions : mapping of str to callable
        What opens one, by the names of their takes; they begin a turn in rotation.
    reels : sequence of Reel
        Their language is given to the sessions, unless the options name one.
    options : TranscribeOptions
    block_samples : int
        How much sound they are fed at a time.
    repeats : int
        Passes of each over a stream.
    one_core : bool
        See `simulate`.

    Yields
    ------
    LiveTurn or Failure
        One a stream; a failure for one that cannot be read.

    Raises
    ------
    OptionError
        If the model does not know a language or the task, or a session refuses its setting.
    """
    warm = False
    for number, reel in enumerate(reels):
        its = recognizer.checked(options, language=options.language or reel.entry.language)
        try:
            parts = reel.load()
            words = spoken(recognizer, reel, parts, its)
        except AudioError as error:
            yield Failure(entry=reel.entry, reason=str(error))
            continue
        samples = np.concatenate(parts)
        for open_session in {} if warm else sessions.values():
            hear(open_session(its), samples[: round(WARM_UP_S * SAMPLE_RATE)], block_samples)
        warm = True
        offline, cost = _offline(recognizer, samples, its)
        takes: dict[str, list[LiveTake]] = {name: [] for name in sessions}
        for repeat in range(repeats):
            first = (number + repeat) % len(sessions)
            for name in [*sessions][first:] + [*sessions][:first]:
                session = sessions[name](its)
                takes[name].append(
                    hear(session, samples, block_samples, words, language=its.language, one_core=one_core)
                )
        yield LiveTurn(
            reel=reel,
            offline=offline,
            offline_cost=cost,
            takes={name: tuple(each) for name, each in takes.items()},
        )


def hear(
    session: Live,
    samples: Floats,
    block_samples: int,
    words: Sequence[Word] = (),
    *,
    language: str | None = None,
    one_core: bool = False,
) -> LiveTake:
    """Let a session hear a stream in simulated real time (see `simulate`).

    Parameters
    ----------
    session : Live
        Fresh.
    samples : ndarray of shape (samples,), float32
    block_samples : int
    words : sequence of Word
        What is spoken, with the times of the stream.
    language : str or None
        Code or name; by its rules words are compared.
    one_core : bool
        See `simulate`.
    """
    units = units_of(language and resolve(language))
    display = Display(units)
    updates = loads = 0
    lag_s = 0.0
    cost = Cost(audio_s=len(samples) / SAMPLE_RATE)
    for step in simulate(session, samples, block_samples, one_core=one_core):
        cost += Cost(wall_s=step.wall_s, cpu_s=step.cpu_s)
        lag_s = max(lag_s, step.lag_s)
        for event in step.events:
            display.take(event, step.moment(event))
            updates += isinstance(event, Interim | Committed)
            loads += isinstance(event, LoadChanged)
    shown = display.words()
    return LiveTake(
        interim=" ".join(display.interim),
        final="".join(display.final),
        latencies=latencies(shown, words, units),
        retractions=display.retractions,
        flickered=display.flickered,
        revised=display.revised(),
        updates=updates,
        loads=loads,
        lag_s=lag_s,
        cost=cost,
    )


def _offline(recognizer: Recognizer, samples: Floats, options: TranscribeOptions) -> tuple[str, Cost]:
    began_s, began_cpu_s = perf_counter(), process_time()
    text = recognizer.transcribe(samples, options).text
    wall_s, cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
    return text, Cost(wall_s=wall_s, cpu_s=cpu_s, audio_s=len(samples) / SAMPLE_RATE)

"""Latency of a live session: delay between the end of a spoken word and its display or commit.

`simulate_real_time` feeds a session blocks of audio without waiting, and times every call; `Display` follows its
events; `measure_latencies` aligns the displayed words with the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile
from time import perf_counter, process_time
from typing import Self, TypeVar

import numpy as np

from harken.contract import Floats
from harken.evaluation.error_rate import Summed, align_words, normalizer
from harken.results import Word
from harken.streaming import Event, FinalSegment, Interim, LiveSession, SpeechEnded
from harken.types import SAMPLE_RATE

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTime:
    """A time in a stream, or a stretch of it, in seconds.

    Computation-unaware is the audio that has been read, as if computing took no time; computation-aware is with the
    time that computing took, on the clock of a stream that goes on meanwhile.

    Source: Ma et al. 2020, "SimulEval: an evaluation toolkit for simultaneous translation".
    """

    computation_unaware_s: float
    computation_aware_s: float

    def since(self, start_s: float) -> StreamTime:
        """Return the time that has passed since a moment of the audio."""
        return StreamTime(
            computation_unaware_s=self.computation_unaware_s - start_s,
            computation_aware_s=self.computation_aware_s - start_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One call of a session."""

    position_samples: int  # of the stream, fed so far
    wall_s: float
    cpu_s: float  # of all processors
    done_s: float  # when it returned, from the start of the stream in real time
    events: Sequence[Event]

    @property
    def lag_s(self) -> float:
        """Seconds that the session was behind the audio when the call returned."""
        return self.done_s - self.position_samples / SAMPLE_RATE

    def emission_time(self, event: Event) -> StreamTime:
        """Return the emission time of one of its events."""
        return StreamTime(
            computation_unaware_s=event.emitted_samples / SAMPLE_RATE, computation_aware_s=self.done_s
        )


def simulate_real_time(
    session: LiveSession, samples: Floats, block_samples: int, *, one_core: bool = False
) -> Iterator[TimedCall]:
    """Feed a stream at 16 kHz block by block, and close it; yield each call.

    The queue of real time is simulated: a call begins once all samples of its block exist and the previous call has
    returned, and takes as long as it took here. Its events are known when it returns. With `one_core` it takes the CPU
    time of all processors instead, as if one core did everything, whatever else the machine does meanwhile.
    """
    done_s = 0.0

    def timed_call(call: Callable[[], list[Event]], position_samples: int) -> TimedCall:
        nonlocal done_s
        events, wall_s, cpu_s = timed(call)
        done_s = max(position_samples / SAMPLE_RATE, done_s) + (cpu_s if one_core else wall_s)
        return TimedCall(
            position_samples=position_samples, wall_s=wall_s, cpu_s=cpu_s, done_s=done_s, events=events
        )

    for start in range(0, len(samples), block_samples):
        block = samples[start : start + block_samples]
        yield timed_call(partial(session.feed, block), start + len(block))
    yield timed_call(session.close, len(samples))


def timed(call: Callable[[], T]) -> tuple[T, float, float]:
    """Return the result of a call, and the seconds that it took, by the wall clock and as CPU time."""
    start_s, start_cpu_s = perf_counter(), process_time()
    result = call()
    return result, perf_counter() - start_s, process_time() - start_cpu_s


UnitSplitter = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedWord:
    """A word on the screen, normalized (see `unit_splitter`).

    It is displayed, tentative or not, from its last appearance on, and committed from its first commit on.
    """

    text: str
    displayed_at: StreamTime
    committed_at: StreamTime | None


@cache
def unit_splitter(language: str | None) -> UnitSplitter:
    """Return the function that splits texts of a language into the units to compare: words, each normalized alone.

    Normalizing each word alone leaves the words of a growing text unchanged, where the rules for a whole text would
    join "twenty three". A word may become several units, or none.
    """
    normalize = cache(normalizer(language))
    return lambda text: [unit for word in text.split() for unit in normalize(word).split()]


def matching_positions(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of equal words in two texts, aligned with the fewest edits, in order."""
    pairs = zip(reference, hypothesis, strict=False)
    prefix_length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    yield from ((i, i) for i in range(prefix_length))
    old = new = prefix_length
    for chunk in align_words(" ".join(reference[prefix_length:]), " ".join(hypothesis[prefix_length:])):
        if chunk.equal:
            yield from ((old + i, new + i) for i in range(len(chunk.reference)))
        old, new = old + len(chunk.reference), new + len(chunk.hypothesis)


class Display:
    """The words on the screen and the texts of a session, updated event by event."""

    def __init__(self, split_units: UnitSplitter) -> None:
        self.interim_texts: list[str] = []  # the last text of every utterance before its segments
        self.final_texts: list[str] = []  # of every committed segment
        self.retractions = 0  # updates whose committed text does not start with that before
        self.flickered = 0  # words that were displayed and missing at the next update
        self._split_units = split_units
        self._committed_text = ""
        self._utterance_text = ""
        self._displayed_words: list[DisplayedWord] = []
        self._streamed_words: list[DisplayedWord] = []
        self._final_words: list[DisplayedWord] = []
        self._final_words_before = 0

    def update(self, event: Event, emission_time: StreamTime) -> None:
        """Apply an event."""
        match event:
            case Interim():
                self._show_interim(event, emission_time)
            case FinalSegment():
                self.final_texts.append(event.segment.text)
                units = self._split_units(event.segment.text)
                self._final_words += [
                    DisplayedWord(text=unit, displayed_at=emission_time, committed_at=emission_time)
                    for unit in units
                ]
            case SpeechEnded(reason="limit"):
                self._split_utterance()
            case SpeechEnded():
                self._end_utterance()

    def words(self) -> list[DisplayedWord]:
        """Return the words of the final text, with the earliest display and commit of each."""
        self._end_utterance()
        words = [*self._final_words]
        for old, new in self._retained_positions():
            streamed, final = self._streamed_words[old], words[new]
            committed_at = min(
                filter(None, (streamed.committed_at, final.committed_at)),
                key=lambda time: time.computation_aware_s,
            )
            displayed_at = min(streamed.displayed_at, committed_at, key=lambda time: time.computation_aware_s)
            words[new] = replace(final, displayed_at=displayed_at, committed_at=committed_at)
        return words

    def revised(self) -> int:
        """Return the number of committed words of utterances that their segments replace or drop."""
        self._end_utterance()
        retained = {old for old, _ in self._retained_positions()}
        return sum(
            word.committed_at is not None and i not in retained for i, word in enumerate(self._streamed_words)
        )

    def _retained_positions(self) -> Iterator[tuple[int, int]]:
        return matching_positions(
            [word.text for word in self._streamed_words], [word.text for word in self._final_words]
        )

    def _show_interim(self, event: Interim, emission_time: StreamTime) -> None:
        if not event.committed.startswith(self._committed_text):
            self.retractions += 1
        self._committed_text, self._utterance_text = event.committed, event.committed + event.tentative
        texts, n_committed = self._split_units(self._utterance_text), len(self._split_units(event.committed))
        words = [
            DisplayedWord(
                text=text, displayed_at=emission_time, committed_at=emission_time if i < n_committed else None
            )
            for i, text in enumerate(texts)
        ]
        n_retained = 0
        for old, new in matching_positions([word.text for word in self._displayed_words], texts):
            displayed = self._displayed_words[old]
            words[new] = replace(
                words[new],
                displayed_at=displayed.displayed_at,
                committed_at=displayed.committed_at or words[new].committed_at,
            )
            n_retained += 1
        self.flickered += len(self._displayed_words) - n_retained
        self._displayed_words = words

    def _end_utterance(self) -> None:
        """Close the current utterance."""
        if self._utterance_text:
            self.interim_texts.append(self._utterance_text)
        self._streamed_words += self._displayed_words
        self._final_words_before = len(self._final_words)
        self._committed_text, self._utterance_text, self._displayed_words = "", "", []

    def _split_utterance(self) -> None:
        """Continue the utterance as a new one; words that its segments lack are displayed there again."""
        displayed = [word.text for word in self._displayed_words]
        finals = [word.text for word in self._final_words[self._final_words_before :]]
        retained = [old for old, _ in matching_positions(displayed, finals)]
        before = retained[-1] + 1 if retained else 0
        self._displayed_words, rest = self._displayed_words[:before], self._displayed_words[before:]
        self._utterance_text = " ".join(word.text for word in self._displayed_words)
        self._end_utterance()
        self._displayed_words = rest


@dataclass(frozen=True, slots=True, kw_only=True)
class WordLatency:
    """The delays from the end of a word in the audio until it was displayed for good, and until it was committed.

    They are negative where the word was guessed early, or where the time of the reference is not exact.
    """

    text: str  # normalized
    end_s: float
    interim_latency: StreamTime
    commit_latency: StreamTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies(Summed):
    """The latencies of the words of a stream, and counts of the words without one.

    Unmatched words of the final text are not in the reference, mostly as recognition errors; those of the reference
    are not in the final text.
    """

    words: tuple[WordLatency, ...] = ()
    unmatched_hypothesis_words: int = 0
    unmatched_reference_words: int = 0

    def percentiles(self, kind: str) -> dict[str, Percentiles | None]:
        """Return those of the ``interim`` or the ``commit`` latencies, ``aware`` of computing time and ``unaware``."""
        delays: list[StreamTime] = [getattr(word, f"{kind}_latency") for word in self.words]
        return {
            "aware": Percentiles.of(each.computation_aware_s for each in delays),
            "unaware": Percentiles.of(each.computation_unaware_s for each in delays),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Median, 95th percentile and maximum, in seconds."""

    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the percentiles of some values; None if there are none."""
        if not (values := [*values]):
            return None
        p50, p95 = np.quantile(values, [0.5, 0.95])
        return cls(p50=float(p50), p95=float(p95), max=max(values))


def measure_latencies(
    displayed_words: Sequence[DisplayedWord], reference_words: Sequence[Word], split_units: UnitSplitter
) -> Latencies:
    """Align the words of the final text with the reference, with the fewest edits, and measure their latencies.

    The words are those of `Display.words`, made with the same splitter; the reference is timed from the start of the
    stream.
    """
    reference = [(unit, word.end_s) for word in reference_words for unit in split_units(word.text)]
    words = []
    for reference_index, displayed_index in matching_positions(
        [unit for unit, _ in reference], [word.text for word in displayed_words]
    ):
        (text, end_s), displayed = reference[reference_index], displayed_words[displayed_index]
        words.append(
            WordLatency(
                text=text,
                end_s=end_s,
                interim_latency=displayed.displayed_at.since(end_s),
                commit_latency=(displayed.committed_at or displayed.displayed_at).since(end_s),
            )
        )
    return Latencies(
        words=tuple(words),
        unmatched_hypothesis_words=len(displayed_words) - len(words),
        unmatched_reference_words=len(reference) - len(words),
    )

"""A live session that knows what it hears: a word a tenth of a second, whatever the sound is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harken.contract import Floats
from harken.results import Segment
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamingConfig
from harken.streaming.latency import LatencyBound, LatencyPlan
from harken.types import SAMPLE_RATE

WORDS = [
    "And",
    "so",
    "my",
    "fellow",
    "Americans",
    "ask",
    "not",
    "what",
    "your",
    "country",
    "can",
    "do",
    "for",
    "you",
]
WORD_SAMPLES = SAMPLE_RATE // 10


def segment(index: int, start_s: float, end_s: float, text: str) -> Segment:
    """A segment that says something."""
    return Segment(
        index=index,
        start_s=start_s,
        end_s=end_s,
        text=text,
        tokens=(1, 2),
        temperature=0.0,
        avg_logprob=-0.1,
        compression_ratio=1.0,
        no_speech_prob=0.0,
        seek_s=start_s,
        language="en",
    )


class Spoken:
    """`harken.streaming.LiveSession` for tests of faces: its utterances are half a second long.

    Parameters
    ----------
    between : callable, optional
        Called with the number of samples heard, before anything is made of a block.

    Attributes
    ----------
    heard : list of ndarray
        The blocks it was fed with.
    closed : bool
    plan : Plan
    """

    plan = LatencyPlan(
        config=StreamingConfig(), bound=LatencyBound(wait_s=1.0, interim_wait_s=0.5, process_s=0.25, hop_s=0.5)
    )

    def __init__(self, between: Callable[[int], None] = lambda samples: None) -> None:
        self.heard: list[Floats] = []
        self.closed = False
        self._between = between
        self._samples = self._words = self._segments = 0

    @property
    def samples(self) -> Floats:
        """All it was fed with."""
        return np.concatenate([np.zeros(0, np.float32), *self.heard])

    def feed(self, samples: Floats) -> list[Event]:
        assert not self.closed
        assert samples.dtype == np.float32
        assert len(samples)
        self.heard.append(samples)
        self._samples += len(samples)
        self._between(self._samples)
        events: list[Event] = []
        while self._samples // WORD_SAMPLES > self._words:
            self._words += 1
            events += self._said()
        return events

    def close(self) -> list[Event]:
        self.closed = True
        return self._final("close") if self._words % 5 else []

    def _said(self) -> list[Event]:
        said = self._words % 5 or 5
        start, now = self._words - said, self._words
        stamps = {"emitted_samples": now * WORD_SAMPLES, "compute_s": 0.0}
        begun: list[Event] = [SpeechStarted(audio_s=start / 10, **stamps)] if said == 1 else []
        words = [f" {WORDS[i % len(WORDS)]}" for i in range(start, now)]
        shown = Interim(
            audio_s=now / 10, committed="".join(words[:-2]), tentative="".join(words[-2:]), **stamps
        )
        return [*begun, shown, *(self._final("silence") if said == 5 else [])]

    def _final(self, reason: str) -> list[Event]:
        start = (self._words - 1) // 5 * 5
        text = "".join(f" {WORDS[i % len(WORDS)]}" for i in range(start, self._words))
        stamps = {"emitted_samples": self._samples, "compute_s": 0.0, "audio_s": self._words / 10}
        whole = segment(self._segments, start / 10, self._words / 10, text)
        self._segments += 1
        return [FinalSegment(segment=whole, **stamps), SpeechEnded(reason=reason, **stamps)]

"""Live sessions with known events: scripted ones, or a word for each tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from harken.api import Recognizer
from harken.contract import Floats
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamingConfig
from harken.streaming.config import StreamOptions
from harken.streaming.latency import LatencyBound, LatencyPlan
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE
from transcripts import segment

WORDS = (
    *("And", "so", "my", "fellow", "Americans", "ask", "not"),
    *("what", "your", "country", "can", "do", "for", "you"),
)
WORD_SAMPLES = SAMPLE_RATE // 10
FakeSession = TypeVar("FakeSession", bound="FakeLiveSession | ScriptedLiveSession")


class FakeLiveSession:
    """`harken.streaming.LiveSession` with a word for each tenth of a second; its utterances have five words.

    `on_feed` is called with the number of samples fed so far, before a block is processed.
    """

    plan = LatencyPlan(
        config=StreamingConfig(), bound=LatencyBound(wait_s=1.0, interim_wait_s=0.5, process_s=0.25, hop_s=0.5)
    )
    config = plan.config

    def __init__(self, on_feed: Callable[[int], None] = lambda samples: None) -> None:
        self.blocks: list[Floats] = []
        self.closed = False
        self._on_feed = on_feed
        self._samples = self._words = self._segments = 0

    @property
    def samples(self) -> Floats:
        """All samples fed."""
        return np.concatenate([np.zeros(0, np.float32), *self.blocks])

    def feed(self, samples: Floats) -> list[Event]:
        assert not self.closed
        assert samples.dtype == np.float32
        assert len(samples)
        self.blocks.append(samples)
        self._samples += len(samples)
        self._on_feed(self._samples)
        events: list[Event] = []
        while self._samples // WORD_SAMPLES > self._words:
            self._words += 1
            events += self._word_events()
        return events

    def close(self) -> list[Event]:
        self.closed = True
        return self._final_events("close") if self._words % 5 else []

    def _word_events(self) -> list[Event]:
        """Return the events of the latest word."""
        count = self._words % 5 or 5
        start, now = self._words - count, self._words
        stamps = {"emitted_samples": now * WORD_SAMPLES, "compute_s": 0.0}
        begun: list[Event] = [SpeechStarted(audio_s=start / 10, **stamps)] if count == 1 else []
        words = [f" {WORDS[i % len(WORDS)]}" for i in range(start, now)]
        committed, tentative = "".join(words[:-2]), "".join(words[-2:])
        shown = Interim(audio_s=now / 10, committed=committed, tentative=tentative, **stamps)
        return [*begun, shown, *(self._final_events("silence") if count == 5 else [])]

    def _final_events(self, reason: str) -> list[Event]:
        start = (self._words - 1) // 5 * 5
        stamps = {"emitted_samples": self._samples, "compute_s": 0.0, "audio_s": self._words / 10}
        text = "".join(f" {WORDS[i % len(WORDS)]}" for i in range(start, self._words))
        about = {"index": self._segments, "tokens": (1, 2), "seek_s": start / 10, "language": "en"}
        final = segment(start / 10, self._words / 10, text, **about)
        self._segments += 1
        return [FinalSegment(segment=final, **stamps), SpeechEnded(reason=reason, **stamps)]


def hears(monkeypatch: pytest.MonkeyPatch, session: FakeSession) -> FakeSession:
    """Replace every live session; `options`, `stream_options` and `speakers` are what it was opened with."""

    def stream(
        recognizer: Recognizer,
        options: TranscribeOptions,
        *,
        stream_options: StreamOptions,
        clock: object,
        **speakers: object,
    ) -> FakeSession:
        session.options, session.stream_options, session.speakers = options, stream_options, speakers
        return session

    monkeypatch.setattr(Recognizer, "stream", stream, raising=False)
    return session


class ScriptedLiveSession:
    """A live session that emits each event of a script once enough samples are fed, and the rest when closed.

    `blocks` holds the number of samples of each call.
    """

    config = StreamingConfig()

    def __init__(self, script: Iterable[Event]) -> None:
        self.blocks: list[int] = []
        self._script = [*script]
        self._closed = False

    def feed(self, samples: Floats) -> list[Event]:
        assert not self._closed
        self.blocks.append(len(samples))
        due = [event for event in self._script if event.emitted_samples <= sum(self.blocks)]
        self._script = self._script[len(due) :]
        return due

    def flush(self) -> list[Event]:
        rest, self._script = self._script, []
        return [replace(event, emitted_samples=min(event.emitted_samples, sum(self.blocks))) for event in rest]

    def close(self) -> list[Event]:
        rest = self.flush()
        self._closed = True
        return rest


def _stamps(at_s: float) -> dict[str, Any]:
    return {"audio_s": at_s, "emitted_samples": round(at_s * SAMPLE_RATE), "compute_s": 0.0}


# Events that are emitted at `at_s`.


def speech_started(at_s: float) -> Event:
    return SpeechStarted(**_stamps(at_s))


def interim_text(at_s: float, committed: str, tentative: str = "") -> Event:
    return Interim(committed=committed, tentative=tentative, **_stamps(at_s))


def final_segment(at_s: float, text: str) -> Event:
    return FinalSegment(segment=segment(0.0, at_s, text), **_stamps(at_s))


def speech_ended(at_s: float, reason: str = "silence") -> Event:
    return SpeechEnded(reason=reason, **_stamps(at_s))

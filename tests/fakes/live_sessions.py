"""Live sessions with known events: scripted ones, or a word for each tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harken.api import Recognizer
from harken.contract import Floats
from harken.results import Segment, Word
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamingConfig
from harken.streaming.latency import LatencyBound, LatencyPlan
from harken.types import SAMPLE_RATE
from transcripts import segment

WORD_SAMPLES = SAMPLE_RATE // 10
UTTERANCE_WORDS = 5
UTTERANCE_SAMPLES = UTTERANCE_WORDS * WORD_SAMPLES


class TalkingSession:
    """`harken.streaming.LiveSession` that hears a word in each tenth of a second; five words are an utterance.

    Speakers take turns with every segment. `on_feed` is called as each block comes, with the number of samples before.
    """

    plan = LatencyPlan(
        config=StreamingConfig(), bound=LatencyBound(wait_s=1.0, interim_wait_s=0.5, process_s=0.001, hop_s=0.5)
    )

    def __init__(
        self, on_feed: Callable[[int], object] = lambda samples: None, speakers: Sequence[str] = ()
    ) -> None:
        self._on_feed, self.speakers, self.closed = on_feed, speakers, False
        self.blocks: list[Floats] = []
        self._samples = self._heard = self._first = self._segments = 0

    @property
    def samples(self) -> Floats:
        """All samples that it has heard."""
        return np.concatenate([np.zeros(0, np.float32), *self.blocks])

    def feed(self, samples: Floats, *, waited_s: float = 0.0) -> list[Event]:
        assert not self.closed
        assert samples.dtype == np.float32
        self.blocks.append(samples)
        if len(samples):
            self._on_feed(self._samples)
        self._samples += len(samples)
        events: list[Event] = []
        while self._samples // WORD_SAMPLES > self._heard:
            if self._heard == self._first:
                events.append(SpeechStarted(audio_s=self._heard / 10, **self._stamp))
            self._heard += 1
            events.append(self._interim())
            if self._heard - self._first == UTTERANCE_WORDS:
                events += self._end("silence")
        return events

    def flush(self, reason: str = "flush") -> list[Event]:
        return self._end(reason) if self._heard > self._first else []

    def close(self) -> list[Event]:
        self.closed = True
        return self.flush("close")

    @property
    def _stamp(self) -> dict[str, Any]:
        return {"emitted_samples": self._samples, "compute_s": 0.0}

    def _interim(self) -> Interim:
        words = [_word(i) for i in range(self._first, self._heard)]
        committed = "".join(word.text for word in words).lstrip()
        return Interim(
            audio_s=self._heard / 10, committed=committed, tentative=" and", words=(words[-1],), **self._stamp
        )

    def _end(self, reason: str) -> list[Event]:
        names = (self.speakers[self._segments % len(self.speakers)],) if self.speakers else ()
        words = tuple(replace(_word(i), speakers=names) for i in range(self._first, self._heard))
        times = {"start_s": self._first / 10, "end_s": self._heard / 10}
        said = make_segment(*words, **times, index=self._segments, language="en", speakers=names)
        self._first = self._heard
        self._segments += 1
        stamp = self._stamp | {"audio_s": self._heard / 10}
        return [FinalSegment(segment=said, **stamp), SpeechEnded(reason=reason, **stamp)]


def make_segment(*words: Word, start_s: float = 0.0, end_s: float = 1.0, **fields: Any) -> Segment:
    """Make a segment of words."""
    return segment(start_s, end_s, "".join(word.text for word in words), words=words, **fields)


def words_said(n_words: int) -> str:
    """Return the words in so many tenths of a second."""
    return " ".join(f"word{i}" for i in range(n_words))


def _word(i: int) -> Word:
    return Word(start_s=i / 10, end_s=(i + 1) / 10, text=f" word{i}", probability=0.9)


def hears(monkeypatch: pytest.MonkeyPatch, session: Any) -> Any:
    """Replace every live session; `options`, `stream_options` and `diarizing` are what it was opened with."""

    def stream(recognizer, options, *, stream_options, clock, **diarizing):
        session.options, session.stream_options, session.diarizing = options, stream_options, diarizing
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

"""A recognizer without a model: it hears a word in each tenth of a second, and five words are an utterance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakes.live_recognizer import FlushableSession
from harken.contract import Floats
from harken.results import Segment, Word
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

WORD_SAMPLES = SAMPLE_RATE // 10
UTTERANCE_WORDS = 5


class TalkingSession:
    """A live session that hears a word in each tenth of a second.

    Parameters
    ----------
    on_feed : callable
        Called with the number of samples before each block is heard, in the engine's thread.
    """

    plan = FlushableSession.plan

    def __init__(self, on_feed: Callable[[int], object] = lambda samples: None) -> None:
        self._on_feed = on_feed
        self._samples = self._heard = self._first = self._segments = 0

    def feed(self, samples: Floats, *, waited_s: float = 0.0) -> list[Event]:
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

    def flush(self) -> list[Event]:
        return self._end("flush") if self._heard > self._first else []

    def close(self) -> list[Event]:
        return self._end("close") if self._heard > self._first else []

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
        words = tuple(_word(i) for i in range(self._first, self._heard))
        segment = Segment(
            index=self._segments, start_s=self._first / 10, end_s=self._heard / 10,
            text="".join(word.text for word in words), tokens=(), temperature=0.0, avg_logprob=0.0,
            compression_ratio=1.0, no_speech_prob=0.0, seek_s=0.0, words=words, language="en",
        )  # fmt: skip
        self._first = self._heard
        self._segments += 1
        stamp = self._stamp | {"audio_s": self._heard / 10}
        return [FinalSegment(segment=segment, **stamp), SpeechEnded(reason=reason, **stamp)]


class TalkingRecognizer:
    """`harken.Recognizer`, as far as live streams need it.

    Parameters
    ----------
    on_feed : callable
        As for `TalkingSession`.
    """

    def __init__(self, on_feed: Callable[[int], object] = lambda samples: None) -> None:
        self._on_feed = on_feed

    def resolve_options(self, options: TranscribeOptions) -> TranscribeOptions:
        return options

    def stream(self, options: TranscribeOptions, *, stream_options: StreamOptions) -> TalkingSession:
        return TalkingSession(self._on_feed)


def words_said(n_words: int) -> str:
    """Return the words in so many tenths of a second."""
    return "".join(_word(i).text for i in range(n_words)).strip()


def _word(i: int) -> Word:
    return Word(start_s=i / 10, end_s=(i + 1) / 10, text=f" word{i}", probability=0.9)

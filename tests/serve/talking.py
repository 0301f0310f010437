"""A recognizer without a model: it hears a word in each tenth of a second, and five words are an utterance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Event as ThreadEvent
from typing import Any

import numpy as np

from harken.audio import load_audio
from harken.contract import Floats
from harken.errors import AudioError, OptionError
from harken.results import Segment, Speaker, Transcript, Word
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamingConfig
from harken.streaming.latency import LatencyBound, LatencyPlan
from harken.text import Tokenizer
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE
from transcripts import segment

WORD_SAMPLES = SAMPLE_RATE // 10
UTTERANCE_WORDS = 5
UTTERANCE_SAMPLES = UTTERANCE_WORDS * WORD_SAMPLES
WAIT_S = 60.0
"""Longest wait of the engine; only a failure takes as long."""
BOUND = LatencyBound(wait_s=1.0, interim_wait_s=0.5, process_s=0.001, hop_s=0.5)


class TalkingSession:
    """A live session that hears a word in each tenth of a second, from speakers who take turns with every segment.

    ``on_feed`` is called with the number of samples before each block is heard, in the engine's thread.
    """

    plan = LatencyPlan(config=StreamingConfig(), bound=BOUND)

    def __init__(
        self, on_feed: Callable[[int], object] = lambda samples: None, speakers: Sequence[str] = ()
    ) -> None:
        self._on_feed, self.speakers, self._blocks = on_feed, speakers, [np.zeros(0, np.float32)]
        self._samples = self._heard = self._first = self._segments = 0

    @property
    def samples(self) -> Floats:
        """All samples that it has heard."""
        return np.concatenate(self._blocks)

    def feed(self, samples: Floats, *, waited_s: float = 0.0) -> list[Event]:
        assert samples.dtype == np.float32
        if len(samples):
            self._on_feed(self._samples)
        self._blocks.append(samples)
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


class TalkingFile:
    """A file in which a session hears its words, an utterance a step; if it tells speakers, all come at the end."""

    def __init__(self, session: TalkingSession, samples: Floats) -> None:
        self._session, self._left = session, samples
        self._segments: list[Segment] = []

    @property
    def finished(self) -> bool:
        return not len(self._left)

    @property
    def read_s(self) -> float:
        return len(self._session.samples) / SAMPLE_RATE

    done_s = read_s

    def step(self) -> list[Segment]:
        events = self._session.feed(self._left[:UTTERANCE_SAMPLES])
        self._left = self._left[UTTERANCE_SAMPLES:]
        events += self._session.close() if self.finished else []
        new = [event.segment for event in events if isinstance(event, FinalSegment)]
        self._segments += new
        if self._session.speakers:
            return [*self.so_far().segments] if self.finished else []
        return new

    def so_far(self) -> Transcript:
        names = self._session.speakers
        return Transcript(
            segments=tuple(self._segments),
            language="en",
            duration_s=self.read_s,
            model="talking",
            speakers=tuple(Speaker(name=name, seconds=1.0) for name in names) if names else None,
        )

    def stop(self) -> None: ...


class TalkingRecognizer:
    """`harken.Recognizer`, as far as the server needs it."""

    def __init__(self, on_feed: Callable[[int], object] = lambda samples: None) -> None:
        self.sessions: list[TalkingSession] = []  # the live ones so far
        self.options: list[TranscribeOptions] = []  # what they were opened with
        self.tokenizer = Tokenizer.bytes_only(multilingual=False)
        self._on_feed = on_feed

    def resolve_options(self, options: TranscribeOptions) -> TranscribeOptions:
        if options.language not in (None, "en"):
            raise OptionError("language", options.language, "en")
        return options

    def stream(
        self, options: TranscribeOptions, *, stream_options: Any, diarizer: Any = None
    ) -> TalkingSession:
        self.sessions.append(TalkingSession(self._on_feed, diarizer.names if diarizer else ()))
        self.options.append(options)
        return self.sessions[-1]

    def transcribe(self, audio: Any, options: TranscribeOptions, diarizer: Any = None) -> TalkingFile:
        session = TalkingSession(self._on_feed, diarizer.names if diarizer else ())
        return TalkingFile(session, load_audio(audio))


class TurnsDiarizer:
    """What makes two speakers take turns; the first are the voices that it knows."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = [*names, "A", "B"][:2]

    def with_voices(self, voices: Mapping[str, Floats]) -> TurnsDiarizer:
        for name, samples in voices.items():
            if not np.any(samples):
                raise AudioError(f"{name}: nobody speaks in the sample")
        return TurnsDiarizer(voices)


class Gate:
    """What a model hears, and a gate at which it waits before what comes behind some samples of a stream or a file."""

    def __init__(self, from_samples: float) -> None:
        self.heard: list[int] = []  # samples of a stream or file before each block of it
        self.open = ThreadEvent()
        self.failure: Exception | None = None  # what it raises instead
        self._from_samples = from_samples

    def hear(self, samples: int) -> None:
        self.heard.append(samples)
        if self.failure:
            raise self.failure
        assert samples < self._from_samples or self.open.wait(WAIT_S)


def make_segment(*words: Word, start_s: float = 0.0, end_s: float = 1.0, **fields: Any) -> Segment:
    """Make a segment of words."""
    return segment(start_s, end_s, "".join(word.text for word in words), words=words, **fields)


def words_said(n_words: int) -> str:
    """Return the words in so many tenths of a second."""
    return " ".join(f"word{i}" for i in range(n_words))


def _word(i: int) -> Word:
    return Word(start_s=i / 10, end_s=(i + 1) / 10, text=f" word{i}", probability=0.9)

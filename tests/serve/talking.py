"""A recognizer without a model, of whose files and live sessions each tenth of a second is a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Event as ThreadEvent
from typing import Any

import numpy as np

from fakes.live_sessions import UTTERANCE_SAMPLES, TalkingSession
from harken.audio import load_audio
from harken.contract import Floats
from harken.errors import AudioError, OptionError
from harken.results import Segment, Speaker, Transcript
from harken.streaming import FinalSegment
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE
from tiny_models import ENGLISH_TOKENIZER

WAIT_S = 60.0
"""Longest wait of the engine; only a failure takes as long."""


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
        self.tokenizer = ENGLISH_TOKENIZER
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

    def with_options(self, options: object) -> TurnsDiarizer:
        return self

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

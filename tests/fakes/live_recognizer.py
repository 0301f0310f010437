"""A model for servers under test: in its live streams every tenth of a second is a word, and five are an utterance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harken.contract import Floats
from harken.errors import OptionError
from harken.streaming import Event, StreamOptions
from harken.transcribe import TranscribeOptions

from .live_sessions import WORD_SAMPLES, FakeLiveSession


class FlushableSession(FakeLiveSession):
    """`FakeLiveSession` with the calls of a server: blocks of any size, and utterances are flushed; it costs little."""

    plan = replace(FakeLiveSession.plan, bound=replace(FakeLiveSession.plan.bound, process_s=0.001))

    def feed(self, samples: Floats, *, waited_s: float = 0.0) -> list[Event]:
        pieces = [samples[i : i + WORD_SAMPLES] for i in range(0, len(samples), WORD_SAMPLES)]
        return [event for piece in pieces for event in super(FlushableSession, self).feed(piece)]

    def flush(self) -> list[Event]:
        events = self._final_events("flush") if self._words % 5 else []
        self._words += -self._words % 5
        self._samples = self._words * WORD_SAMPLES
        return events


class LiveRecognizer:
    """`harken.Recognizer` as far as live streams use it, with the sessions opened so far and their options."""

    def __init__(
        self, languages: tuple[str, ...] = ("en",), on_feed: Callable[[int], object] = lambda samples: None
    ) -> None:
        self.languages, self._on_feed = languages, on_feed
        self.sessions: list[FlushableSession] = []
        self.options: list[TranscribeOptions] = []

    def resolve_options(self, options: TranscribeOptions) -> TranscribeOptions:
        if options.language and options.language not in self.languages:
            raise OptionError("language", options.language, f"one of {', '.join(self.languages)}")
        return options

    def stream(self, options: TranscribeOptions, *, stream_options: StreamOptions) -> FlushableSession:
        session = FlushableSession(self._on_feed)
        self.sessions.append(session)
        self.options.append(options)
        return session

"""A live session that follows a script: for tests of what measures and shows sessions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from harken.contract import Floats
from harken.results import Segment
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded, SpeechStarted, StreamingConfig
from harken.types import SAMPLE_RATE


class ScriptedLive:
    """Says its lines once enough of the stream has been fed, and the rest when it is closed.

    Parameters
    ----------
    script : iterable of Event
        In order of `emitted_samples`.

    Attributes
    ----------
    blocks : list of int
        How many samples each call brought.
    """

    config = StreamingConfig()

    def __init__(self, script: Iterable[Event]) -> None:
        self.blocks: list[int] = []
        self._script = [*script]
        self._closed = False

    def feed(self, samples: Floats) -> list[Event]:
        assert not self._closed
        self.blocks.append(len(samples))
        due = [its for its in self._script if its.emitted_samples <= sum(self.blocks)]
        self._script = self._script[len(due) :]
        return due

    def flush(self) -> list[Event]:
        """Say what is left."""
        rest, self._script = self._script, []
        return [replace(its, emitted_samples=min(its.emitted_samples, sum(self.blocks))) for its in rest]

    def close(self) -> list[Event]:
        rest = self.flush()
        self._closed = True
        return rest


def started(at_s: float) -> Event:
    """Somebody begins to speak."""
    return SpeechStarted(audio_s=at_s, emitted_samples=_samples(at_s), compute_s=0.0)


def interim(at_s: float, committed: str, tentative: str = "") -> Event:
    """Text of an utterance, shown at `at_s`."""
    return Interim(
        audio_s=at_s, emitted_samples=_samples(at_s), compute_s=0.0, committed=committed, tentative=tentative
    )


def segment(at_s: float, text: str) -> Event:
    """A segment that is committed at `at_s`."""
    its = Segment(
        index=0, start_s=0.0, end_s=at_s, text=text, tokens=(), temperature=0.0, avg_logprob=0.0,
        compression_ratio=1.0, no_speech_prob=0.0, seek_s=0.0,
    )  # fmt: skip
    return FinalSegment(audio_s=at_s, emitted_samples=_samples(at_s), compute_s=0.0, segment=its)


def ended(at_s: float, reason: str = "silence") -> Event:
    """The utterance is over."""
    return SpeechEnded(audio_s=at_s, emitted_samples=_samples(at_s), compute_s=0.0, reason=reason)


def _samples(at_s: float) -> int:
    return round(at_s * SAMPLE_RATE)

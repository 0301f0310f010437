"""Events of a live session: grouped by utterance, and checked for what always holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from harken.contract import Floats
from harken.results import Segment
from harken.streaming import Event, FinalSegment, Interim, LiveSession, LoadChanged, SpeechEnded, SpeechStarted
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE


@dataclass
class Utterance:
    """One utterance of a session, from when to when in the stream, and why it ended."""

    began: float
    ended: float = 0.0
    reason: str = ""
    interims: list[Interim] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The final text."""
        return "".join(segment.text for segment in self.segments)

    @property
    def committed(self) -> str:
        """The text committed before the end."""
        return self.interims[-1].committed if self.interims else ""

    def of(self, samples: Floats) -> Floats:
        """Return the samples of the utterance, given those of the stream."""
        start, end = (round(seconds * FRAMES_PER_SECOND) * HOP_SAMPLES for seconds in (self.began, self.ended))
        return samples[start:end]


def run_session(session: LiveSession, samples: Floats, cuts: Iterable[int] = ()) -> list[Event]:
    """Feed samples, split at `cuts`, close the session, and return all events."""
    pieces = np.split(samples, sorted(cuts))
    return [event for piece in pieces for event in session.feed(piece)] + session.close()


def group_utterances(events: Sequence[Event]) -> list[Utterance]:
    """Group events by utterance; fail where their order is wrong."""
    utterances: list[Utterance] = []
    open_ = False
    for event in events:
        match event:
            case SpeechStarted():
                assert not open_
                utterances.append(Utterance(event.audio_s))
                open_ = True
            case Interim():
                assert open_
                assert not utterances[-1].segments
                utterances[-1].interims.append(event)
            case FinalSegment():
                assert open_
                utterances[-1].segments.append(event.segment)
            case SpeechEnded():
                assert open_
                utterances[-1].ended, utterances[-1].reason = event.audio_s, event.reason
                open_ = False
    assert not open_
    return utterances


def final_text(events: Sequence[Event]) -> str:
    """Return the text of all final segments."""
    return "".join(event.segment.text for event in events if isinstance(event, FinalSegment))


def check_events(events: Sequence[Event], fed_samples: int) -> list[Utterance]:
    """Check what holds for the events of any stream, and return the utterances."""
    emitted = [event.emitted_samples for event in events]
    assert emitted == sorted(emitted)
    assert not emitted or emitted[-1] <= fed_samples
    for event in events:
        if not isinstance(event, FinalSegment | LoadChanged):  # the times in segments come from the model
            assert 0 <= event.audio_s <= event.emitted_samples / SAMPLE_RATE + 1e-9

    utterances = group_utterances(events)
    edges = [edge for utterance in utterances for edge in (utterance.began, utterance.ended)]
    assert edges == sorted(edges)
    for utterance in utterances:
        assert utterance.reason in ("silence", "sentence", "limit", "flush", "close")
        for earlier, later in pairwise(utterance.interims):
            assert later.committed.startswith(earlier.committed)
            assert (later.committed, later.tentative) != (earlier.committed, earlier.tentative)
        words = [word for interim in utterance.interims for word in interim.words]
        assert utterance.committed.endswith("".join(word.text for word in words).lstrip())
        assert all(word.start_s < word.end_s for word in words)
        assert all(one.end_s <= other.start_s for one, other in pairwise(words))

    segments = [event.segment for event in events if isinstance(event, FinalSegment)]
    assert [segment.index for segment in segments] == [*range(len(segments))]
    assert [event.audio_s for event in events if isinstance(event, FinalSegment)] == [s.end_s for s in segments]
    assert all(segment.start_s <= segment.end_s for segment in segments)
    for edges in ([s.start_s for s in segments], [s.end_s for s in segments]):
        assert edges == sorted(edges)
    return utterances


def check_committed_text(utterances: Sequence[Utterance]) -> None:
    """Check that the committed text is the beginning of the final one; a cut utterance goes on in the next."""
    for first, utterance in enumerate(utterances):
        chain = utterance.text
        for before, after in pairwise(utterances[first:]):
            if before.reason != "limit":
                break
            chain += after.text
        assert chain.lstrip().startswith(utterance.committed)

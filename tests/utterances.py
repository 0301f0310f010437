"""What the events of a live session say, utterance by utterance, and what holds of any."""

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
class Said:
    """One utterance of a session.

    Parameters
    ----------
    began, ended : float
        Seconds in the stream.
    reason : str
        Why it ended.
    interims : list of Interim
    segments : list of Segment
    """

    began: float
    ended: float = 0.0
    reason: str = ""
    interims: list[Interim] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What was said in the end."""
        return "".join(segment.text for segment in self.segments)

    @property
    def committed(self) -> str:
        """What was said before the end."""
        return self.interims[-1].committed if self.interims else ""

    def of(self, samples: Floats) -> Floats:
        """Its samples, out of those of the stream."""
        start, end = (round(seconds * FRAMES_PER_SECOND) * HOP_SAMPLES for seconds in (self.began, self.ended))
        return samples[start:end]


def live(session: LiveSession, samples: Floats, cuts: Iterable[int] = ()) -> list[Event]:
    """All events of samples that are fed cut at some points; the session is closed."""
    pieces = np.split(samples, sorted(cuts))
    return [event for piece in pieces for event in session.feed(piece)] + session.close()


def utterances(events: Sequence[Event]) -> list[Said]:
    """What was said, one utterance after the other; fails where events are in another order than they should be."""
    told: list[Said] = []
    open_ = False
    for event in events:
        match event:
            case SpeechStarted():
                assert not open_
                told.append(Said(event.audio_s))
                open_ = True
            case Interim():
                assert open_
                assert not told[-1].segments
                told[-1].interims.append(event)
            case FinalSegment():
                assert open_
                told[-1].segments.append(event.segment)
            case SpeechEnded():
                assert open_
                told[-1].ended, told[-1].reason = event.audio_s, event.reason
                open_ = False
    assert not open_
    return told


def text(events: Sequence[Event]) -> str:
    """What was said in the end."""
    return "".join(event.segment.text for event in events if isinstance(event, FinalSegment))


def check(events: Sequence[Event], fed_samples: int) -> list[Said]:
    """Check what holds of any stream, and return its utterances."""
    emitted = [event.emitted_samples for event in events]
    assert emitted == sorted(emitted)
    assert not emitted or emitted[-1] <= fed_samples
    for event in events:
        if not isinstance(event, FinalSegment | LoadChanged):  # what a model says of times is its own affair
            assert 0 <= event.audio_s <= event.emitted_samples / SAMPLE_RATE + 1e-9

    told = utterances(events)
    edges = [edge for its in told for edge in (its.began, its.ended)]
    assert edges == sorted(edges)
    for its in told:
        assert its.reason in ("silence", "sentence", "limit", "flush", "close")
        for earlier, later in pairwise(its.interims):
            assert later.committed.startswith(earlier.committed)
            assert (later.committed, later.tentative) != (earlier.committed, earlier.tentative)
        words = "".join(word.text for interim in its.interims for word in interim.words)
        assert its.committed.endswith(words.lstrip())

    segments = [event.segment for event in events if isinstance(event, FinalSegment)]
    assert [segment.index for segment in segments] == [*range(len(segments))]
    assert [event.audio_s for event in events if isinstance(event, FinalSegment)] == [s.end_s for s in segments]
    assert all(segment.start_s <= segment.end_s for segment in segments)
    for edges in ([s.start_s for s in segments], [s.end_s for s in segments]):
        assert edges == sorted(edges)
    return told


def check_streamed(told: Sequence[Said]) -> None:
    """Check that what was committed word by word is what was said in the end; a cut utterance goes on in the next."""
    for first, its in enumerate(told):
        chain = its.text
        for before, after in pairwise(told[first:]):
            if before.reason != "limit":
                break
            chain += after.text
        assert chain.lstrip().startswith(its.committed)

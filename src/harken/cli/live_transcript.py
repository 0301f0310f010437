"""The transcript of a live session, whose speakers settle some time after the words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from harken.results import Segment, Speaker, SpeakerTurn, Transcript
from harken.speakers.attribution import cut_at_changes


class SettlingSegments:
    """Segments on their way into a transcript, which wait until their speakers change no more.

    Parameters
    ----------
    delay_s : float
        Seconds of audio until then; by default they do not wait.

    Attributes
    ----------
    encode : callable
        Returns the tokens of a text, for segments that are cut where the speaker changes; to be set once it is known.
    """

    encode: Callable[[str], Sequence[int]]

    def __init__(self, delay_s: float = -inf) -> None:
        self.encode = lambda text: ()
        self._delay_s = delay_s
        self._waiting: dict[int, Segment] = {}

    def add(self, segment: Segment) -> Iterator[Segment]:
        """Add a segment; yield those that have settled when it ends."""
        self._waiting[segment.index] = segment
        yield from self._take(segment.end_s - self._delay_s)

    def correct(self, segment: Segment) -> None:
        """Replace the segment of the same index."""
        self._waiting[segment.index] = segment

    def finish(self) -> Iterator[Segment]:
        """Yield the others at the end of the session."""
        yield from self._take(inf)

    def _take(self, until_s: float) -> Iterator[Segment]:
        settled = [index for index, segment in self._waiting.items() if segment.end_s < until_s]
        for index in settled:
            yield from cut_at_changes(self._waiting.pop(index), self.encode)


def make_transcript(segments: tuple[Segment, ...], duration_s: float, params: Mapping[str, Any]) -> Transcript:
    """Return the transcript of a session with these parameters of the command line."""
    turns = _turns(segments)
    languages = [segment.language for segment in segments if segment.language]
    return Transcript(
        segments=segments,
        language=languages[-1] if languages else params["language"] or "en",
        duration_s=duration_s,
        model=params["model"],
        task=params["task"],
        speakers=_speakers(turns) if params["speakers"] else None,
        turns=turns,
    )


def _turns(segments: Sequence[Segment]) -> tuple[SpeakerTurn, ...]:
    """Return a turn for each segment and speaker."""
    return tuple(
        SpeakerTurn(start_s=segment.start_s, end_s=segment.end_s, speaker=name)
        for segment in segments
        for name in segment.speakers
    )


def _speakers(turns: Sequence[SpeakerTurn]) -> tuple[Speaker, ...]:
    """Return the speakers of turns, in order of appearance."""
    seconds: dict[str, float] = defaultdict(float)
    for turn in turns:
        seconds[turn.speaker] += turn.end_s - turn.start_s
    return tuple(Speaker(name=name, seconds=round(of_name, 3)) for name, of_name in seconds.items())

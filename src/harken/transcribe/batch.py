"""Decode the windows of several lanes together: of one recording, of many, or of both.

A lane is a chain of windows of which each depends on the one before it. Lanes do not depend on each other, so how many
of them are decoded together changes how long it takes and not what is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from harken.decoding import DecodeStats
from harken.errors import Cancelled
from harken.results import Segment
from harken.transcribe.hearing import Hearing, Job
from harken.transcribe.lane import Lane
from harken.transcribe.longform import LongForm


class Batch:
    """Recordings on their way; as many windows as fit are decoded at a time.

    Parameters
    ----------
    hearing : Hearing
        Decodes windows.
    recordings : iterable of LongForm
        Begun in this order, each when there is room for it.
    size : int
        Most windows to decode together.
    eager : bool
        Whether the first window goes alone, so that its words are there sooner.
    """

    def __init__(
        self, hearing: Hearing, recordings: Iterable[LongForm], size: int, *, eager: bool = True
    ) -> None:
        self._hearing, self._size = hearing, size
        self._waiting = deque(recordings)
        self._begun: list[LongForm] = []
        self._lanes: list[Lane] = []
        self._alone = eager

    @property
    def stats(self) -> DecodeStats:
        """What decoding all of them has cost so far."""
        return self._hearing.stats

    def segments(self, recording: LongForm) -> Iterator[Segment]:
        """Segments of one of the recordings as they are decoded; the others advance with it.

        Raises
        ------
        AudioError
            Where the recording breaks off; after the segments before that.
        Cancelled
            Within one decoder step of a hook's answer.
        """
        while True:
            while recording.ready:
                yield recording.ready.popleft()
            recording.report()
            if recording.finished:
                break
            self._advance()
        if recording.failure:
            raise recording.failure

    def _advance(self) -> None:
        """Decode one window of each lane in work; or only find that a recording has ended, for its caller to know."""
        size = 1 if self._alone else self._size
        jobs = [(lane, job) for lane in self._lanes if (job := lane.job())]
        ended = self._collect()
        self._fill(jobs, self._begun, size)
        ended |= self._collect()
        if not ended:
            self._fill(jobs, self._begin(), size)
        # Before anything is decoded: what a hook raises must not lose them.
        self._lanes = [lane for lane, _ in jobs]
        if not ended:
            self._alone = False
            self._decode(jobs)
            self._collect()

    def _decode(self, jobs: list[tuple[Lane, Job]]) -> None:
        """Decode one window of each lane; one recording that is cancelled does not end the others."""
        try:
            outcomes = self._hearing.decode([job for _, job in jobs])
        except Cancelled as cancelled:
            stopped = [recording for recording in self._begun if recording.hooks.cancelled()]
            if not stopped:
                raise
            for recording in stopped:
                recording.stop(cancelled)
            return
        for (lane, _), outcome in zip(jobs, outcomes, strict=True):
            lane.take(outcome)

    def _fill(self, jobs: list[tuple[Lane, Job]], recordings: Iterable[LongForm], size: int) -> None:
        """Add the first windows of new lanes as long as there is room."""
        opened = (lane for recording in recordings for lane in iter(recording.new_lane, None))
        while len(jobs) < size and (lane := next(opened, None)):
            if job := lane.job():
                jobs.append((lane, job))

    def _begin(self) -> Iterator[LongForm]:
        """Recordings that have been waiting."""
        while self._waiting:
            self._begun.append(self._waiting.popleft())
            yield self._begun[-1]

    def _collect(self) -> bool:
        """Take what the lanes have to give; whether that was the last of some recording."""
        for recording in self._begun:
            recording.collect()
        going = [recording for recording in self._begun if not recording.finished]
        ended = len(going) < len(self._begun)
        self._begun = going
        return ended

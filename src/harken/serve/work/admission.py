"""Admission: files by the seconds of audio in progress, live streams by their measured cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harken.serve.errors import busy

MIN_MEASURED_S = 5.0
"""Seconds of a stream, or of several that were shorter, before their cost is taken as measured."""
RETRY_STREAM_S = 10.0
MAX_UPLOADS = 32
"""Files to receive at the same time: each may take as much of the disk as is allowed."""
RETRY_UPLOAD_S = 5.0
FIRST_REAL_TIME_FACTOR = 0.05
"""Guess of the computing time of a second of a file, until the first has been measured."""


@dataclass(eq=False)
class LiveCost:
    """Seconds that a stream has taken of its engine, and those of the audio that it was for."""

    service_s: float = 0.0
    audio_s: float = 0.0


class Admission:
    """The room that there is for more work: `RequestError` says that there is none at present.

    Parameters
    ----------
    max_queue_s : float
        Seconds of recordings that may be in progress together; a single one may be longer.
    max_streams : int
    max_load : float
        Share of the engines' time that live streams may need.
    """

    def __init__(self, *, max_queue_s: float, max_streams: int, max_load: float) -> None:
        self._max_queue_s, self._max_streams, self._max_load = max_queue_s, max_streams, max_load
        self._files_s: list[float] = []  # of those in progress
        self._streams: set[LiveCost] = set()
        self._n_uploads = 0
        self._usual_load = 0.0
        self._short = LiveCost()  # of streams that have ended before theirs was measured
        self._real_time_factor = FIRST_REAL_TIME_FACTOR

    @property
    def queued_s(self) -> float:
        """Seconds of recordings in progress."""
        return sum(self._files_s)

    @property
    def n_files(self) -> int:
        """Number of files in progress."""
        return len(self._files_s)

    @property
    def n_streams(self) -> int:
        """Number of live streams."""
        return len(self._streams)

    @property
    def load(self) -> float:
        """Share of the engines' time that the live streams need."""
        return sum(map(self._load_of, self._streams))

    @contextmanager
    def file(self, duration_s: float) -> Iterator[None]:
        """Make room for a recording."""
        queued_s = self.queued_s
        if self._files_s and queued_s + duration_s > self._max_queue_s:
            raise busy(
                f"recordings of {queued_s:.0f} s are in progress, and one of {duration_s:.0f} s would be too much; "
                f"allowed are {self._max_queue_s:g} s together",
                queued_s * self._real_time_factor,
            )
        self._files_s.append(duration_s)
        try:
            yield
        finally:
            self._files_s.remove(duration_s)

    @contextmanager
    def upload(self) -> Iterator[None]:
        """Make room for a file that is being received."""
        if self._n_uploads >= MAX_UPLOADS:
            raise busy(f"{self._n_uploads} files are being received; allowed are {MAX_UPLOADS}", RETRY_UPLOAD_S)
        self._n_uploads += 1
        try:
            yield
        finally:
            self._n_uploads -= 1

    @contextmanager
    def stream(self) -> Iterator[LiveCost]:
        """Make room for a live stream, whose cost is to be recorded."""
        if self.n_streams >= self._max_streams:
            raise busy(
                f"{self.n_streams} live streams are open; allowed are {self._max_streams}", RETRY_STREAM_S
            )
        load = self.load
        if self._streams and load + self._usual_load > self._max_load:
            raise busy(
                f"{self.n_streams} live streams need {load:.0%} of the machine, and one more would need about "
                f"{self._usual_load:.0%}; allowed are {self._max_load:.0%}",
                RETRY_STREAM_S,
            )
        cost = LiveCost()
        self._streams.add(cost)
        try:
            yield cost
        finally:
            self._streams.remove(cost)
            if cost.audio_s < MIN_MEASURED_S:
                self._add_short(cost)

    def record_live(
        self, cost: LiveCost, service_s: float, audio_s: float, *, planned_load: float = 0.0
    ) -> None:
        """Record what a stream has cost so far, and would cost as it was planned, from any thread."""
        if cost not in self._streams:  # it has ended
            return
        cost.service_s, cost.audio_s = service_s, audio_s
        self._usual_load = self._usual_load or planned_load
        if audio_s >= MIN_MEASURED_S:
            measured = service_s / audio_s
            self._usual_load = 0.9 * self._usual_load + 0.1 * measured if self._usual_load else measured

    def record_file(self, service_s: float, audio_s: float) -> None:
        """Record what a file has cost, from any thread."""
        if audio_s:
            self._real_time_factor = 0.8 * self._real_time_factor + 0.2 * service_s / audio_s

    def _add_short(self, cost: LiveCost) -> None:
        self._short.service_s += cost.service_s
        self._short.audio_s += cost.audio_s
        if self._short.audio_s >= MIN_MEASURED_S:
            self._usual_load = self._short.service_s / self._short.audio_s
            self._short = LiveCost()

    def _load_of(self, cost: LiveCost) -> float:
        measured = cost.audio_s >= MIN_MEASURED_S
        return cost.service_s / cost.audio_s if measured else self._usual_load

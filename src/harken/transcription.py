"""The transcription of one recording while it is in progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from harken.decoding import DecodeStats
from harken.errors import HarkenError
from harken.results import Segment, Transcript
from harken.transcribe import RecordingTranscriber, Scheduler


class DecodingTurn:
    """The right to decode, held by one thread at a time: recordings that were given together share their decoder."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for other threads, and keep them waiting.

        Raises
        ------
        HarkenError
            If this thread has it already: a callback asks for what it is called for.
        """
        with self.lock:
            if self._taken:
                raise HarkenError("a callback asked for segments that its own transcription is decoding")
            try:
                self._taken = True
                yield
            finally:
                self._taken = False


class Transcription:
    """A transcription in progress: iterate over it for the segments as they are decoded.

    Iterating again starts from the first segment and decodes nothing twice. An error that ended the decoding is raised
    again after the last segment. Several threads may iterate at once: one decodes, the others wait for it.
    """

    def __init__(
        self, recording: RecordingTranscriber, scheduler: Scheduler, model: str, turn: DecodingTurn
    ) -> None:
        self._recording, self._scheduler, self._model, self._turn = recording, scheduler, model, turn
        self._segment_iterator = scheduler.segments(recording)
        self._decoded_segments: list[Segment] = []
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[Segment]:
        index = 0
        while index < len(self._decoded_segments) or self._decode_until(index):
            yield self._decoded_segments[index]
            index += 1

    def step(self) -> list[Segment]:
        """Decode at most one window, and return the segments that it completes.

        For programs that do other work between the steps. A step may also pass over some minutes without speech, and
        return nothing. With recordings that were given together, a step decodes up to `batch_size` windows of them.

        Returns
        -------
        list of Segment
            Those that no step and no iteration has returned before.

        Raises
        ------
        HarkenError
            What ended the decoding, once all segments before it have been returned.
        """
        with self._turn.taken():
            segments = self._scheduler.step(self._recording)
            self._decoded_segments += segments
            if not segments and self._recording.failure:
                self._failure = self._recording.failure
                raise self._failure
        return segments

    @property
    def finished(self) -> bool:
        """True once all segments have been decoded and returned, and the error that ended the decoding raised."""
        recording = self._recording
        return recording.finished and not recording.ready_segments and recording.failure is self._failure

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""
        return self._recording.duration_s

    @property
    def done_s(self) -> float:
        """Seconds of the recording that have been decoded."""
        return self._recording.done_s

    def _decode_until(self, index: int) -> bool:
        """Decode the segment of an index unless another thread has; return False if there is none."""
        with self._turn.taken():
            if index < len(self._decoded_segments):
                return True
            if self._failure:
                raise self._failure
            try:
                self._decoded_segments.append(next(self._segment_iterator))
            except StopIteration:
                return False
            except BaseException as failure:
                self._failure = failure
                raise
        return True

    @property
    def language(self) -> str | None:
        """Code of the language; None until the first window has been decoded."""
        return self._recording.language

    @property
    def stats(self) -> DecodeStats:
        """Decoding statistics so far; a pass over windows of several recordings counts for each of them."""
        return self._recording.stats

    @property
    def batch_stats(self) -> DecodeStats:
        """Decoding statistics so far of all recordings that were given together."""
        return self._scheduler.stats

    @property
    def text(self) -> str:
        """Text of the whole recording; decodes the rest of it first."""
        return self.result().text

    @property
    def peak(self) -> float | None:
        """Largest magnitude of the samples so far, 0 in digital silence; None without voice activity detection."""
        return self._recording.peak

    def stop(self) -> None:
        """Stop decoding this recording."""
        with self._turn.lock:
            self._recording.stop()

    def so_far(self) -> Transcript:
        """Return the transcript of what has been decoded so far; never waits for a thread that decodes."""
        ready = tuple(self._recording.ready_segments)  # before the others, to which they move one by one
        segments = [*self._decoded_segments]
        for segment in ready:
            if segment.index == len(segments):
                segments.append(segment)
        return Transcript(
            segments=tuple(segments),
            language=self._recording.language or "en",
            language_probability=self._recording.language_probability,
            duration_s=self._recording.duration_s,
            model=self._model,
            task=self._recording.options.task,
            dropped=tuple(self._recording.dropped),
            speech=self._recording.speech,
            unwritten=tuple(self._recording.unwritten),
        )

    def result(self) -> Transcript:
        """Decode the rest of the recording, and return the whole transcript."""
        for _ in self:
            pass
        return self.so_far()

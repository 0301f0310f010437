"""The transcription of one recording while it is in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from harken.decoding import DecodeStats
from harken.errors import HarkenError
from harken.results import Segment, Transcript
from harken.speakers.diarizer import Diarization
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


class Speakers:
    """The speakers of a recording, and its segments, which wait for them: who speaks is known at the end.

    Parameters
    ----------
    diarization : Diarization
    encode : callable
        Returns the tokens of a text, for segments that are cut.
    """

    def __init__(self, diarization: Diarization, encode: Callable[[str], Sequence[int]]) -> None:
        self.diarization, self._encode = diarization, encode
        self._waiting: list[Segment] = []
        self._attributed: list[Segment] | None = None

    def add(self, segments: Iterable[Segment]) -> None:
        """Add the next segments of the recording."""
        self._waiting.extend(segments)

    def so_far(self, ready: Sequence[Segment]) -> list[Segment]:
        """Return the segments so far, those that are ready included, with the speakers known so far."""
        if self._attributed is not None:
            return self._attributed
        return self.diarization.attribute([*self._waiting, *ready], self._encode)

    def finish(self) -> list[Segment]:
        """Return all segments with their speakers at the end of the recording; empty from the second call on."""
        if self._attributed is not None:
            return []
        self._attributed = self.so_far(())
        return self._attributed

    @property
    def finished(self) -> bool:
        """True once all segments have been given their speakers."""
        return self._attributed is not None


class Transcription:
    """A transcription in progress: iterate over it for the segments as they are decoded.

    Iterating again starts from the first segment and decodes nothing twice. An error that ended the decoding is raised
    again after the last segment. Several threads may iterate at once: one decodes, the others wait for it.
    """

    def __init__(
        self,
        recording: RecordingTranscriber,
        scheduler: Scheduler,
        model: str,
        turn: DecodingTurn,
        speakers: Speakers | None = None,
    ) -> None:
        self._recording, self._scheduler, self._model, self._turn = recording, scheduler, model, turn
        self._speakers = speakers
        decoded = scheduler.segments(recording)
        self._segment_iterator = self._with_speakers(decoded, speakers) if speakers else decoded
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
            if self._speakers:
                self._speakers.add(segments)
                segments = self._speakers.finish() if self._recording.finished else []
            self._decoded_segments += segments
            if not segments and self._recording.failure:
                self._failure = self._recording.failure
                raise self._failure
        return segments

    @property
    def finished(self) -> bool:
        """True once all segments have been decoded and returned, and the error that ended the decoding raised."""
        recording = self._recording
        waiting = recording.ready_segments or (self._speakers and not self._speakers.finished)
        return recording.finished and not waiting and recording.failure is self._failure

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""
        return self._recording.duration_s

    @property
    def done_s(self) -> float:
        """Seconds of the recording that have been decoded."""
        return self._recording.done_s

    def _with_speakers(self, decoded: Iterator[Segment], speakers: Speakers) -> Iterator[Segment]:
        """Yield the segments with their speakers, once all have been decoded."""
        failure = None
        try:
            for segment in decoded:
                speakers.add([segment])
        except HarkenError as error:
            failure = error
        yield from speakers.finish()
        if failure:
            raise failure

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
        if self._speakers:
            segments, ready = self._speakers.so_far(ready), ()
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
            speakers=self._speakers.diarization.speakers if self._speakers else None,
            turns=self._speakers.diarization.turns if self._speakers else (),
        )

    def result(self) -> Transcript:
        """Decode the rest of the recording, and return the whole transcript."""
        for _ in self:
            pass
        return self.so_far()

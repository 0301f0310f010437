"""A transcription in progress."""

from __future__ import annotations

from collections.abc import Iterator

from harken.decoding import DecodeStats
from harken.results import Segment, Transcript
from harken.transcribe import Batch, LongForm


class Transcription:
    """A transcription in progress: iterate for segments as they are decoded.

    Iterating again starts from the first segment and decodes nothing twice; what ended the work early is raised
    again behind the last segment.
    """

    def __init__(self, work: LongForm, batch: Batch, model: str) -> None:
        self._work, self._batch, self._model = work, batch, model
        self._segments = batch.segments(work)
        self._done: list[Segment] = []
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[Segment]:
        index = 0
        while index < len(self._done) or self._decode_one():
            yield self._done[index]
            index += 1

    def _decode_one(self) -> bool:
        """Decode one more segment; False where there is none."""
        if self._failure:
            raise self._failure
        try:
            self._done.append(next(self._segments))
        except StopIteration:
            return False
        except BaseException as failure:
            self._failure = failure
            raise
        return True

    @property
    def language(self) -> str | None:
        """Code of the language; None until the first window has been decoded."""
        return self._work.language

    @property
    def stats(self) -> DecodeStats:
        """What decoding has cost so far; a pass over windows of several recordings counts for each of them."""
        return self._work.stats

    @property
    def batch_stats(self) -> DecodeStats:
        """What decoding has cost so far for all recordings that were given together."""
        return self._batch.stats

    @property
    def text(self) -> str:
        """The whole text; decodes what has not been decoded."""
        return self.result().text

    def stop(self) -> None:
        """Decode no more than has been decoded."""
        self._work.stop()

    def so_far(self) -> Transcript:
        """What has been decoded up to now."""
        return Transcript(
            segments=(*self._done, *self._work.ready),
            language=self._work.language or "en",
            language_probability=self._work.language_probability,
            duration_s=self._work.duration_s,
            model=self._model,
            task=self._work.options.task,
            dropped=tuple(self._work.dropped),
            speech=self._work.speech,
        )

    def result(self) -> Transcript:
        """Decode what has not been decoded and return the whole."""
        for _ in self:
            pass
        return self.so_far()

"""Exact finals: each utterance of a stream heard once more as a whole, for little more than the encoder's pass.

What was heard of it while it was spoken is the draft that the decoder verifies. It costs less where that was right, and
says the same whatever it was: what an offline transcription of these samples says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harken.audio import stream
from harken.contract import Floats
from harken.results import Segment
from harken.transcribe import Batch, Hearing, LongForm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Utterance:
    """A stretch of a stream that has ended.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32, 16 kHz
    start_s : float
        Where it begins in the stream.
    previous : tuple of int
        Tokens that were heard in it, with timestamps or without.
    language : str or None
        Code or name of its language; if None it is detected, unless the options say what it is.
    """

    samples: Floats
    start_s: float
    previous: tuple[int, ...] = ()
    language: str | None = None


class Finals:
    """Transcribes utterances of one stream or of several, as many windows together as may be.

    Parameters
    ----------
    hearing : Hearing
        The model and its options. Without a speculator drafts go unused, which costs time and changes no word.
    batch_size : int
        Most windows to decode together.
    """

    def __init__(self, hearing: Hearing, batch_size: int) -> None:
        self._hearing, self._batch_size = hearing, batch_size

    def hear(self, utterances: Sequence[Utterance]) -> list[tuple[Segment, ...]]:
        """Transcribe some utterances.

        Returns
        -------
        list of tuple of Segment
            What is said in each, as `harken.Recognizer.transcribe` would have it, in the times of the stream; numbered
            from 0 in each.

        Raises
        ------
        AudioError
            If there are no samples, or some are not finite.
        OptionError
            If a language is unknown.
        """
        works = [
            LongForm(self._hearing, stream(its.samples), language=its.language, previous=its.previous)
            for its in utterances
        ]
        batch = Batch(self._hearing, works, self._batch_size, eager=False)
        return [
            tuple(_shifted(segment, its.start_s) for segment in batch.segments(work))
            for its, work in zip(utterances, works, strict=True)
        ]


def _shifted(segment: Segment, by_s: float) -> Segment:
    """A segment with the times of the stream."""
    return replace(
        segment,
        start_s=segment.start_s + by_s,
        end_s=segment.end_s + by_s,
        seek_s=segment.seek_s + by_s,
        words=tuple(replace(w, start_s=w.start_s + by_s, end_s=w.end_s + by_s) for w in segment.words),
    )

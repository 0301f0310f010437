"""Exact finals: each utterance of a stream heard once more as a whole, for little more than the encoder's pass.

What was heard of it while it was spoken is the draft that the decoder verifies. It costs less where that was right, and
says the same whatever it was: what an offline transcription of these samples says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harken.audio import stream_audio
from harken.contract import Floats
from harken.results import Segment
from harken.transcribe import RecordingTranscriber, Scheduler, WindowDecoder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinalRequest:
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
    draft_tokens: tuple[int, ...] = ()
    language: str | None = None


class FinalPass:
    """Transcribes utterances of one stream or of several, as many windows together as may be.

    Parameters
    ----------
    hearing : Hearing
        The model and its options. Without a speculator drafts go unused, which costs time and changes no word.
    batch_size : int
        Most windows to decode together.
    """

    def __init__(self, window_decoder: WindowDecoder, batch_size: int) -> None:
        self._window_decoder, self._batch_size = window_decoder, batch_size

    def transcribe(self, requests: Sequence[FinalRequest]) -> list[tuple[Segment, ...]]:
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
        recordings = [
            RecordingTranscriber(
                self._window_decoder,
                stream_audio(request.samples),
                language=request.language,
                draft_tokens=request.draft_tokens,
            )
            for request in requests
        ]
        scheduler = Scheduler(self._window_decoder, recordings, self._batch_size, first_window_alone=False)
        return [
            tuple(_shifted(segment, its.start_s) for segment in scheduler.segments(work))
            for its, work in zip(requests, recordings, strict=True)
        ]


def _shifted(segment: Segment, offset_s: float) -> Segment:
    """A segment with the times of the stream."""
    return replace(
        segment,
        start_s=segment.start_s + offset_s,
        end_s=segment.end_s + offset_s,
        seek_s=segment.seek_s + offset_s,
        words=tuple(replace(w, start_s=w.start_s + offset_s, end_s=w.end_s + offset_s) for w in segment.words),
    )

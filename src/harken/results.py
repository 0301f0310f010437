"""What a transcription gives: transcripts of segments, each with the attempts that led to it."""

from __future__ import annotations

from dataclasses import dataclass

from harken.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word and when it was spoken.

    Attributes
    ----------
    start_s, end_s : float
        Seconds from the start of the recording, ``0 <= start_s <= end_s``.
    text : str
        The word as decoded, with the space before it and the punctuation around it.
    probability : float
        Mean probability of its tokens, 0 to 1.
    """

    start_s: float
    end_s: float
    text: str
    probability: float

    def __post_init__(self) -> None:
        _check_span(self.start_s, self.end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One rung of the fallback ladder, as tried on one window.

    Attributes
    ----------
    temperature : float
        0 for greedy or beam search, otherwise that of sampling.
    avg_logprob : float
        Mean natural log-probability of the tokens, the end included.
    compression_ratio : float
        Bytes of the text over its bytes after zlib; high for text that repeats itself.
    no_speech_prob : float
        Probability of ``<|nospeech|>`` where the transcript starts, 0 to 1.
    reason : str or None
        Why it was rejected, None for the attempt that was kept.
    """

    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One stretch of speech between two timestamps, with the numbers of the window it was decoded in.

    Attributes
    ----------
    index : int
        Position in the transcript, from 0.
    start_s, end_s : float
        Seconds from the start of the recording, ``0 <= start_s <= end_s``.
    text : str
        As decoded: it usually begins with a space.
    tokens : tuple of int
        Its tokens, timestamps included.
    temperature, avg_logprob, compression_ratio, no_speech_prob : float
        Those of the attempt that was kept (see `Attempt`).
    seek_s : float
        Where the window begins that the segment was decoded in, in seconds from the start.
    attempts : tuple of Attempt
        What was tried on that window, the one kept last.
    words : tuple of Word
        Empty unless words were aligned.
    language : str or None
        Code of the language that its window was decoded in.
    hallucination_score : float
        How likely it is that nothing of this was said, 0 to 1 (see `harken.transcribe.hallucination`).

    Raises
    ------
    OptionError
        If the times are not finite, are negative or run backwards.
    """

    index: int
    start_s: float
    end_s: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    seek_s: float
    attempts: tuple[Attempt, ...] = ()
    words: tuple[Word, ...] = ()
    language: str | None = None
    hallucination_score: float = 0.0

    def __post_init__(self) -> None:
        _check_span(self.start_s, self.end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedSegment:
    """A segment that was decoded and left out of the transcript.

    Attributes
    ----------
    segment : Segment
        Its `index` is that of the segment before which it stood.
    reason : str
        Why it was taken for invented, in a few words.
    """

    segment: Segment
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A whole recording, or as much of it as was done.

    Attributes
    ----------
    segments : tuple of Segment
        In order of time.
    language : str
        Code of the language, given or detected.
    language_probability : float or None
        Probability of the language detected, 0 to 1; None where it was given or the model is English-only.
    duration_s : float
        Length of the recording in seconds.
    model : str
        Name or path of the model.
    task : {"transcribe", "translate"}
        What was done with the speech.
    dropped : tuple of Dropped
        Segments that were taken for invented and left out, in order of time.
    speech : tuple of (float, float), or None
        Where voice activity was detected, in seconds; None where it was not looked for.
    """

    segments: tuple[Segment, ...]
    language: str
    language_probability: float | None = None
    duration_s: float
    model: str
    task: str = "transcribe"
    dropped: tuple[DroppedSegment, ...] = ()
    speech: tuple[tuple[float, float], ...] | None = None

    @property
    def text(self) -> str:
        """The whole text, without the space that it begins with."""
        return "".join(segment.text for segment in self.segments).strip()


def _check_span(start_s: float, end_s: float) -> None:
    if not 0 <= start_s < float("inf"):
        raise OptionError("start_s", start_s, "a finite time from 0 s on")
    if not start_s <= end_s < float("inf"):
        raise OptionError("end_s", end_s, f"a finite time from start_s={start_s!r} on")

"""Results of a transcription: transcripts, their segments and words, and the attempts at decoding each window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from harken.errors import OptionError

MAX_TIME_S = 1e9
"""The largest time of a segment or word: 31 years, which every format can write."""


class _Span:
    """A span of time, whose start and end are checked."""

    __slots__ = ()
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.start_s <= MAX_TIME_S:
            raise OptionError("start_s", self.start_s, f"a finite time from 0 s to {MAX_TIME_S:g} s")
        if not self.start_s <= self.end_s <= MAX_TIME_S:
            allowed = f"a finite time from start_s={self.start_s!r} to {MAX_TIME_S:g} s"
            raise OptionError("end_s", self.end_s, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word(_Span):
    """One word and its times.

    Attributes
    ----------
    start_s, end_s : float
        Seconds from the start of the recording, ``0 <= start_s <= end_s``.
    text : str
        Decoded text, with the space before it and the punctuation around it.
    probability : float
        Mean probability of its tokens, 0 to 1.
    speakers : tuple of str
        Names of who said it, the main speaker first; two or more where they speak at once. Empty without diarization.
    """

    start_s: float
    end_s: float
    text: str
    probability: float
    speakers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at decoding a window, with one strategy of the fallback schedule.

    Attributes
    ----------
    temperature : float
        Temperature of sampling; 0 for greedy or beam search.
    avg_logprob : float
        Mean natural log-probability of the tokens, the end of text included.
    compression_ratio : float
        Bytes of the text divided by its bytes after zlib; high for text that repeats itself.
    no_speech_prob : float
        Probability of ``<|nospeech|>`` at the start of the transcript, 0 to 1.
    reason : str or None
        Reason for rejecting the attempt; None for the one that was accepted.
    """

    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(_Span):
    """One stretch of speech between two timestamps, with the numbers of the window it was decoded in.

    Attributes
    ----------
    index : int
        Position in the transcript, from 0.
    start_s, end_s : float
        Seconds from the start of the recording, ``0 <= start_s <= end_s``.
    text : str
        Decoded text, which usually begins with a space.
    tokens : tuple of int
        Decoded tokens, timestamps included.
    temperature, avg_logprob, compression_ratio, no_speech_prob : float
        Those of the accepted attempt (see `Attempt`).
    seek_s : float
        Start of the window that the segment was decoded in, in seconds from the start of the recording.
    attempts : tuple of Attempt
        All attempts at that window, the accepted one last.
    words : tuple of Word
        Empty without word timestamps.
    language : str or None
        Code of the language that its window was decoded in.
    hallucination_score : float
        Probability that the text was never spoken, 0 to 1 (see `harken.transcribe.hallucination`).
    speakers : tuple of str
        Names of who said it, who said most first. Empty without diarization.

    Raises
    ------
    OptionError
        If the times are not finite, are negative, run backwards, or are above `MAX_TIME_S`.
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
    speakers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedSegment:
    """A segment that was decoded and left out of the transcript as a hallucination.

    Attributes
    ----------
    segment : Segment
        Its `index` is that of the next segment of the transcript.
    reason : str
        Evidence for a hallucination, in a few words.
    """

    segment: Segment
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwrittenSpeech(_Span):
    """Detected speech that has no words in the transcript, although it was decoded once more on its own.

    Attributes
    ----------
    start_s, end_s : float
        Seconds from the start of the recording, ``0 <= start_s <= end_s``.
    reason : str
        Reason why it has none, in a few words.
    """

    start_s: float
    end_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerTurn(_Span):
    """Speech of one speaker without a pause; turns of two speakers may overlap.

    Attributes
    ----------
    start_s, end_s : float
        Seconds from the start of the recording, ``0 <= start_s <= end_s``.
    speaker : str
        Name of the speaker.
    """

    start_s: float
    end_s: float
    speaker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """A speaker of a recording.

    Attributes
    ----------
    name : str
        ``"A"``, ``"B"``, ... in order of appearance, or the name of a known voice.
    seconds : float
        Sum of the speaker's turns.
    """

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The transcript of a recording, or of the part of it that was decoded.

    Attributes
    ----------
    segments : tuple of Segment
        In order of time.
    language : str
        Code of the language, given or detected.
    language_probability : float or None
        Probability of the detected language, 0 to 1; None where it was given or the model is English-only.
    duration_s : float
        Length of the recording in seconds.
    model : str
        Name or path of the model.
    task : {"transcribe", "translate"}
    dropped : tuple of DroppedSegment
        Segments that were left out as hallucinations, in order of time.
    speech : tuple of (float, float), or None
        Start and end of each speech region in seconds; None without voice activity detection.
    unwritten : tuple of UnwrittenSpeech
        Detected speech without words, in order of time: of a second or more, or all of a window without text; dropped
        segments are not among it.
    speakers : tuple of Speaker, or None
        In order of appearance; None without diarization.
    turns : tuple of SpeakerTurn
        Who spoke when, in order of their start.
    """

    segments: tuple[Segment, ...]
    language: str
    language_probability: float | None = None
    duration_s: float
    model: str
    task: str = "transcribe"
    dropped: tuple[DroppedSegment, ...] = ()
    speech: tuple[tuple[float, float], ...] | None = None
    unwritten: tuple[UnwrittenSpeech, ...] = ()
    speakers: tuple[Speaker, ...] | None = None
    turns: tuple[SpeakerTurn, ...] = ()

    @property
    def text(self) -> str:
        """Text of all segments, without leading and trailing spaces."""
        return "".join(segment.text for segment in self.segments).strip()


SpanT = TypeVar("SpanT", Word, Segment, UnwrittenSpeech, SpeakerTurn)


def shifted(span: SpanT, by_s: float) -> SpanT:
    """Return a span of time that is so much later, a segment with its words; times are in whole milliseconds."""
    later = replace(span, start_s=round(span.start_s + by_s, 3), end_s=round(span.end_s + by_s, 3))
    if isinstance(later, Segment):
        words = tuple(shifted(word, by_s) for word in later.words)
        return replace(later, seek_s=round(later.seek_s + by_s, 3), words=words)
    return later


def cut(
    segment: Segment, runs: Sequence[Sequence[Word]], encode: Callable[[str], Sequence[int]]
) -> Iterator[Segment]:
    """Yield the parts of a segment that are runs of its words, whose texts are encoded; a single one is all of it."""
    if len(runs) <= 1:
        yield segment
        return
    for position, run in enumerate(runs):
        text = "".join(word.text for word in run)
        yield replace(
            segment,
            start_s=run[0].start_s if position else segment.start_s,
            end_s=run[-1].end_s if position < len(runs) - 1 else max(segment.end_s, run[-1].start_s),
            text=text,
            tokens=tuple(encode(text)),
            words=tuple(run),
        )


def speakers_of(turns: Iterable[SpeakerTurn]) -> tuple[Speaker, ...]:
    """Return the speakers of turns, in order of appearance."""
    seconds: dict[str, float] = {}
    for turn in turns:
        seconds[turn.speaker] = seconds.get(turn.speaker, 0.0) + (turn.end_s - turn.start_s)
    return tuple(Speaker(name=name, seconds=round(of_name, 3)) for name, of_name in seconds.items())

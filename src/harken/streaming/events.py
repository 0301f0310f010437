"""What a live session tells its caller."""

from __future__ import annotations

from dataclasses import dataclass

from harken.results import Segment, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What all events have.

    Parameters
    ----------
    audio_s : float
        Time in the stream that it is about, in seconds from the start of the stream.
    emitted_samples : int
        How many samples of the stream had to be fed for it, at 16 kHz, however they were cut.
    compute_s : float
        Seconds of computation that it took, from the moment these samples were there; 0 without a clock.
    """

    audio_s: float
    emitted_samples: int
    compute_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStarted(_Event):
    """Somebody began to speak at `audio_s`; an utterance begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interim(_Event):
    """The utterance as it has been heard up to `audio_s`.

    Parameters
    ----------
    committed : str
        Text that no later event of this utterance changes: every next one begins with it. (With exact finals the
        segments that are committed in the end may read otherwise; with streamed ones they may not.)
    tentative : str
        Text behind it that may still change.
    words : tuple of Word
        Words of `committed` that are new in it, with the times at which they were spoken.
    """

    committed: str
    tentative: str
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalSegment(_Event):
    """A final segment, in order of time; nothing of it will change. It ends at `audio_s`.

    Parameters
    ----------
    segment : Segment
        Numbered from 0 in the stream, with the times of the stream.
    """

    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechEnded(_Event):
    """The utterance is over; it ended at `audio_s`.

    Parameters
    ----------
    reason : {"silence", "sentence", "limit", "flush", "close"}
        Why: a long pause; a shorter one behind the end of a sentence; the longest utterance was reached, so it was cut
        where there was least speech and goes on; or the caller said so.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChanged(_Event):
    """The session does less, or more again, so as to keep up.

    Parameters
    ----------
    level : int
        0 is all that was asked for; each further one leaves out more, in the order of `harken.streaming.load_shedding.LEVELS`.
    lag_s : float
        How far it was behind the sound.
    detail : str
        What is done now, in words.
    """

    level: int
    lag_s: float
    detail: str


Event = SpeechStarted | Interim | FinalSegment | SpeechEnded | LoadChanged

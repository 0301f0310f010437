"""The events of a live session, and their JSON: the lines of `harken listen --json`, the messages of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harken.formats import as_json
from harken.results import Segment, Word
from harken.types import SAMPLE_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The fields that all events share.

    Parameters
    ----------
    audio_s : float
        Time in the stream that the event is about, in seconds from the start of the stream.
    emitted_samples : int
        Number of samples of the stream, at 16 kHz, that had to be fed for it, however they were split into blocks.
    compute_s : float
        Seconds of computation for it, from when these samples had been fed; 0 without a clock.
    """

    audio_s: float
    emitted_samples: int
    compute_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStarted(_Event):
    """The start of an utterance, at `audio_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interim(_Event):
    """The text of the current utterance up to `audio_s`.

    Parameters
    ----------
    committed : str
        Text that no later interim of this utterance changes: each begins with it. (With exact finals the final segments
        may differ from it; with streamed ones they do not.)
    tentative : str
        Text after it that may still change.
    words : tuple of Word
        Words newly added to `committed`, with their times in the stream.
    """

    committed: str
    tentative: str
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalSegment(_Event):
    """A final segment; segments come in order of time and never change, but for their speakers. It ends at `audio_s`.

    Parameters
    ----------
    segment : Segment
        Numbered from 0 in the stream, with times in the stream.
    """

    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakersChanged(_Event):
    """Other speakers of a final segment, which ends at `audio_s`.

    No word changes its speakers once the delay of the session has passed since it was said.

    Parameters
    ----------
    segment : Segment
        The segment of that index with its speakers and those of its words; nothing else in it changes.
    """

    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechEnded(_Event):
    """The end of an utterance, at `audio_s`.

    Parameters
    ----------
    reason : {"silence", "sentence", "limit", "flush", "close"}
        A long pause; a shorter one after the end of a sentence; the utterance reached its greatest length, was split at
        its longest silence and continues in the next; or the caller flushed or closed the stream.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChanged(_Event):
    """A change of the load level: the session does less work to keep up, or more again.

    A session that cannot do all its work from the start says so by its first event, with a lag of 0. One that falls
    behind although nothing more can be left out says so when the lag is 10 s, and each time that it has doubled.

    Parameters
    ----------
    level : int
        Index into `harken.streaming.load_shedding.LOAD_LEVELS`; 0 leaves nothing out.
    lag_s : float
        Seconds that the computation was behind the audio.
    detail : str
        Description of the level.
    """

    level: int
    lag_s: float
    detail: str


Event = SpeechStarted | Interim | FinalSegment | SpeakersChanged | SpeechEnded | LoadChanged


_EVENT_NAMES: dict[type, str] = {
    SpeechStarted: "speech_started",
    Interim: "interim",
    FinalSegment: "final_segment",
    SpeakersChanged: "speakers_changed",
    SpeechEnded: "speech_ended",
    LoadChanged: "load_changed",
}


def event_fields(event: Event) -> dict[str, Any]:
    """Return its name as ``event``, ``emitted_s`` for `emitted_samples`, and its other fields, for `json.dumps`."""
    fields: dict[str, Any] = as_json(event)
    times = {
        "audio_s": fields.pop("audio_s"),
        "emitted_s": fields.pop("emitted_samples") / SAMPLE_RATE,
        "compute_s": round(fields.pop("compute_s"), 6),
    }
    return {"event": _EVENT_NAMES[type(event)]} | times | fields

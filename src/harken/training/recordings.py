"""Recordings of a training: finding them, the speech in them, and the held-out ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harken.audio import load_audio
from harken.audio.vad import RegionTracker, SpeechDetector, VadOptions
from harken.errors import AudioError
from harken.manifests import Entry
from harken.types import FRAMES_PER_SECOND, SAMPLE_RATE, WINDOW_S

MAX_SPEECH_S = WINDOW_S - 1.0
Progress = Callable[[int, int], None]
"""Called with the number of items done, and their total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSegment:
    """A segment of speech in a recording, at most `MAX_SPEECH_S` long.

    Attributes
    ----------
    start_s, end_s : float
    text : str or None
        Reference text, where it is known.
    """

    start_s: float
    end_s: float
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecording:
    """A recording and its segments of speech.

    Attributes
    ----------
    path : Path
    group : str
        Only recordings of one group are joined.
    language : str or None
        None where it is to be detected.
    held_out : bool
        True if it is only measured with.
    segments : tuple of SpeechSegment
    duration_s : float
    """

    path: Path
    group: str
    language: str | None
    held_out: bool
    segments: tuple[SpeechSegment, ...]
    duration_s: float


SpeechFinder = Callable[[Entry], tuple[tuple[SpeechSegment, ...], float]]
"""Returns the segments of speech in a recording, and its length in seconds."""


def choose_held_out(entries: Sequence[Entry], fraction: float) -> set[str]:
    """Choose the names of the recordings to hold out.

    A group with enough speakers holds out all recordings of some speakers, any other single recordings. The choice
    depends on the names alone, so that it stays the same when recordings are added.
    """
    chosen: set[str] = set()
    for group in dict.fromkeys(map(group_of, entries)):
        members = [entry for entry in entries if group_of(entry) == group]
        speakers = {entry.speaker for entry in members if entry.speaker}
        by_speaker = fraction * len(speakers) >= 1
        units = sorted({(by_speaker and entry.speaker) or entry.name for entry in members}, key=_name_hash)
        held_out_units = set(units[: round(fraction * len(units))])
        chosen |= {
            entry.name for entry in members if ((by_speaker and entry.speaker) or entry.name) in held_out_units
        }
    return chosen


def group_of(entry: Entry) -> str:
    """Return the group of a recording: the folder of its manifest."""
    return entry.name.partition("/")[0]


def _name_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def scan_recordings(
    entries: Sequence[Entry],
    held_out: set[str],
    speech_finder: SpeechFinder,
    note: Callable[[str], None],
    progress: Progress = lambda done, total: None,
) -> Iterator[TrainingRecording]:
    """Find the speech in every recording; one that cannot be read is reported and left out."""
    for done, entry in enumerate(entries):
        progress(done, len(entries))
        try:
            segments, duration_s = speech_finder(entry)
        except AudioError as error:
            note(str(error))
            continue
        yield TrainingRecording(
            path=entry.path,
            group=group_of(entry),
            language=entry.language,
            held_out=entry.name in held_out,
            segments=segments,
            duration_s=duration_s,
        )


def find_speech(
    entry: Entry, speech_pad_s: float = VadOptions().speech_pad_s
) -> tuple[tuple[SpeechSegment, ...], float]:
    """Return the segments of speech in a recording, each short enough for a window, and its length in seconds."""
    samples = load_audio(entry.path)
    detector = SpeechDetector()
    tracker = RegionTracker(VadOptions(max_speech_s=MAX_SPEECH_S, speech_pad_s=speech_pad_s))
    finished = tracker.feed(np.concatenate([detector.feed(samples), detector.flush()]))
    speech_regions = [*finished, *tracker.flush(len(samples) * FRAMES_PER_SECOND // SAMPLE_RATE)]
    segments = tuple(
        SpeechSegment(start_s=start / FRAMES_PER_SECOND, end_s=end / FRAMES_PER_SECOND)
        for start, end in speech_regions
    )
    return segments, len(samples) / SAMPLE_RATE

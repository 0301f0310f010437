"""Recordings as one stream: those of a speaker one behind the other, and when each word in them is spoken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath

import numpy as np

from harken.api import Recognizer
from harken.audio import load_audio
from harken.contract import Floats
from harken.evaluation.manifest import Entry
from harken.evaluation.speed import EvalRecording
from harken.results import Word
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedStream:
    """Recordings that are heard as one stream.

    Attributes
    ----------
    sounds : tuple of Sound
        In their order.
    gap_s : float
        Silence between two of them.
    """

    recordings: tuple[EvalRecording, ...]
    gap_s: float = 0.0

    @property
    def has_reference(self) -> bool:
        """Whether all that is said in it is known."""
        return all(sound.has_reference for sound in self.recordings)

    @property
    def entry(self) -> Entry:
        """The stream as one recording, named by the speaker."""
        first, *others = (sound.entry for sound in self.recordings)
        if not others:
            return first
        folder = PurePosixPath(first.name).parent
        seconds = [sound.entry.seconds for sound in self.recordings]
        known = None if None in seconds else sum(filter(None, seconds)) + self.gap_s * len(others)
        return replace(
            first,
            name=str(folder / (first.speaker or "joined")),
            text=" ".join(sound.entry.text for sound in self.recordings),
            seconds=known,
        )

    def load(self) -> tuple[Floats, ...]:
        """Read its recordings, each with the silence behind it but the last.

        Returns
        -------
        tuple of ndarray of shape (samples,), float32
            At 16 kHz; one behind the other they are the stream.

        Raises
        ------
        AudioError
            If one cannot be read.
        """
        silence = np.zeros(round(self.gap_s * SAMPLE_RATE), np.float32)
        *before, last = (load_audio(sound.entry.path) for sound in self.recordings)
        return (*(np.concatenate([samples, silence]) for samples in before), last)


def join_by_speaker(recordings: Iterable[EvalRecording], gap_s: float) -> tuple[JoinedStream, ...]:
    """One stream a speaker (of a folder, in a language), its recordings in their order, with silence between them."""

    def speaker(recording: EvalRecording) -> tuple[str, ...]:
        entry = recording.entry
        return str(PurePosixPath(entry.name).parent), entry.language or "", entry.speaker or ""

    return tuple(
        JoinedStream(recordings=tuple(group), gap_s=gap_s)
        for _, group in groupby(sorted(recordings, key=speaker), key=speaker)
    )


def reference_word_times(
    recognizer: Recognizer,
    stream: JoinedStream,
    recording_samples: Sequence[Floats],
    options: TranscribeOptions,
) -> tuple[Word, ...]:
    """When each word of a stream is spoken, as the model's own attention tells that hears all of it.

    A recording whose text is known is aligned with that; any other is transcribed with times of words.

    Parameters
    ----------
    recognizer : Recognizer
    reel : Reel
    parts : sequence of ndarray
        From `Reel.load`.
    options : TranscribeOptions

    Returns
    -------
    tuple of Word
        With the times of the stream.

    Raises
    ------
    AudioError
        If a long recording does not say its text.
    """
    words: list[Word] = []
    start_s = 0.0
    for recording, samples in zip(stream.recordings, recording_samples, strict=True):
        found: Iterable[Word]
        if text := recording.entry.text:
            # Words in capitals are many tokens each, which blurs the times.
            found = recognizer.align(samples, text.lower() if text.isupper() else text, options)
        else:
            segments = recognizer.transcribe(samples, options, word_timestamps=True).result().segments
            found = (word for segment in segments for word in segment.words)
        words += (
            replace(timed, start_s=timed.start_s + start_s, end_s=timed.end_s + start_s) for timed in found
        )
        start_s += len(samples) / SAMPLE_RATE
    return tuple(words)

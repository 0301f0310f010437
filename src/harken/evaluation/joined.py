"""Recordings as one stream: those of a speaker one behind the other, and when each word in them is spoken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath

import numpy as np

from harken.api import Recognizer
from harken.audio import load
from harken.contract import Floats
from harken.evaluation.manifest import Entry
from harken.evaluation.speed import Sound
from harken.results import Word
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Reel:
    """Recordings that are heard as one stream.

    Attributes
    ----------
    sounds : tuple of Sound
        In their order.
    gap_s : float
        Silence between two of them.
    """

    sounds: tuple[Sound, ...]
    gap_s: float = 0.0

    @property
    def referenced(self) -> bool:
        """Whether all that is said in it is known."""
        return all(sound.referenced for sound in self.sounds)

    @property
    def entry(self) -> Entry:
        """The stream as one recording, named by the speaker."""
        first, *others = (sound.entry for sound in self.sounds)
        if not others:
            return first
        folder = PurePosixPath(first.name).parent
        seconds = [sound.entry.seconds for sound in self.sounds]
        known = None if None in seconds else sum(filter(None, seconds)) + self.gap_s * len(others)
        return replace(
            first,
            name=str(folder / (first.speaker or "joined")),
            text=" ".join(sound.entry.text for sound in self.sounds),
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
        *before, last = (load(sound.entry.path) for sound in self.sounds)
        return (*(np.concatenate([samples, silence]) for samples in before), last)


def join(sounds: Iterable[Sound], gap_s: float) -> tuple[Reel, ...]:
    """One stream a speaker (of a folder, in a language), its recordings in their order, with silence between them."""

    def speaker(sound: Sound) -> tuple[str, ...]:
        entry = sound.entry
        return str(PurePosixPath(entry.name).parent), entry.language or "", entry.speaker or ""

    return tuple(
        Reel(sounds=tuple(its), gap_s=gap_s) for _, its in groupby(sorted(sounds, key=speaker), key=speaker)
    )


def spoken(
    recognizer: Recognizer, reel: Reel, parts: Sequence[Floats], options: TranscribeOptions
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
    for sound, samples in zip(reel.sounds, parts, strict=True):
        found: Iterable[Word]
        if text := sound.entry.text:
            # Words in capitals are many tokens each, which blurs the times.
            found = recognizer.align(samples, text.lower() if text.isupper() else text, options)
        else:
            segments = recognizer.transcribe(samples, options, word_timestamps=True).result().segments
            found = (word for segment in segments for word in segment.words)
        words += (replace(its, start_s=its.start_s + start_s, end_s=its.end_s + start_s) for its in found)
        start_s += len(samples) / SAMPLE_RATE
    return tuple(words)

"""Names of speakers: letters, and people known by some seconds of their speech, whom the user keeps in a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from harken.checkpoints.model_files import read_object
from harken.contract import Floats
from harken.errors import CheckpointError, OptionError
from harken.files import write_atomic
from harken.speakers.clustering import Matrix

SAME_PERSON = 0.5
"""Cosine similarity from which a speaker of a recording is a known person (docs/decisions/speakers.md)."""
MIN_SAMPLE_S = 1.0
"""Least speech that a sample must have."""
MAX_NAME_LENGTH = 100
_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """The voice of a known person.

    Attributes
    ----------
    name : str
        1 to 100 printable characters.
    embedding : ndarray of shape (192,), float32
        Unit length.
    seconds : float
        Seconds of speech that it was made of.

    Raises
    ------
    OptionError
        If the name is not allowed.
    """

    name: str
    embedding: Floats
    seconds: float

    def __post_init__(self) -> None:
        if not (0 < len(self.name) <= MAX_NAME_LENGTH and self.name.isprintable() and self.name.strip()):
            raise OptionError("name", self.name, f"1 to {MAX_NAME_LENGTH} printable characters")


def letters(index: int) -> str:
    """Return the name of an unknown speaker: A to Z, then AA, AB, ..."""
    name = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, len(ascii_uppercase))
        name = ascii_uppercase[letter] + name
    return name


def name_speakers(centroids: Matrix, voices: Sequence[Voice]) -> list[str | None]:
    """Return the name of each speaker of a recording; None for those who are nobody known.

    Parameters
    ----------
    centroids : ndarray of shape (speakers, 192)
        Mean embedding of each speaker, unit length.
    voices : sequence of Voice
        Each names one speaker at most.
    """
    names: list[str | None] = [None] * len(centroids)
    if not voices or not len(centroids):
        return names
    from scipy.optimize import linear_sum_assignment

    similarities = centroids @ np.stack([voice.embedding for voice in voices]).T
    # Pairs that are too different count the same, so that they take nobody's name away.
    rows, columns = linear_sum_assignment(-np.maximum(similarities, SAME_PERSON))
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if similarities[row, column] >= SAME_PERSON:
            names[row] = voices[column].name
    return names


def read_voices(path: str | os.PathLike[str]) -> tuple[Voice, ...]:
    """Read the voices of a file.

    Raises
    ------
    CheckpointError
        If it is missing or damaged, or of another version.
    """
    file = Path(path)
    content = read_object(file)
    if content.get("version") != _VERSION:
        raise CheckpointError(
            f"{file}: voices of version {content.get('version')!r:.50}, allowed is {_VERSION}"
        )
    entries = content.get("voices")
    if not isinstance(entries, list):
        raise CheckpointError(f"{file}: has no list of voices")
    return tuple(_voice(file, number, entry) for number, entry in enumerate(entries, 1))


def write_voices(path: str | os.PathLike[str], voices: Iterable[Voice]) -> None:
    """Write voices to a file, whole or not at all: JSON with names, seconds and embeddings, and no sound.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    entries = [
        {
            "name": voice.name,
            "seconds": round(voice.seconds, 2),
            "embedding": [round(value, 5) for value in voice.embedding.tolist()],
        }
        for voice in voices
    ]
    write_atomic(Path(path), [json.dumps({"version": _VERSION, "voices": entries})])


def _voice(file: Path, number: int, entry: object) -> Voice:
    where = f"{file}: voice {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise CheckpointError(f"{where}: has no name")
    try:
        embedding = np.array(entry["embedding"], np.float32)
        seconds = float(entry["seconds"])
        length = float(np.linalg.norm(embedding))
        if embedding.ndim != 1 or not math.isfinite(length) or not length or not math.isfinite(seconds):
            raise ValueError
        return Voice(entry["name"], embedding / np.float32(length), seconds)
    except OptionError as error:
        raise CheckpointError(f"{where}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where} ({entry['name']!r:.100}): has no seconds or no embedding") from error

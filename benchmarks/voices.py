"""Voices that conversations are made of: speakers of the sets, their clean recordings, and where those hold speech.

Speech is found by energy alone, so that no detector of any engine has a say in the references: the level of 20 ms
every 10 ms against the loudest of the recording (its 99th percentile) and the quietest (its 5th).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recordings import SAMPLE_RATE

if TYPE_CHECKING:
    from harken.contract import Floats
    from harken.manifests import Entry

Region = tuple[float, float]
"""Start and end in seconds."""

HOP_S, FRAME_S = 0.01, 0.02
ABOVE_FLOOR_DB = 12.0
"""Speech is that much louder than the quietest 5 % of its recording..."""
BELOW_PEAK_DB = (45.0, 28.0)
"""...but the threshold lies at most and at least that much below the loudest."""
SHORTEST_SPEECH_S = 0.06
"""A louder moment that is shorter is a click."""
EDGE_S = 0.03
"""Added on both sides of speech, for onsets and decays below the threshold."""
WHOLE_S = 20.0
"""The longest recording that may be spoken whole in a turn."""
FADE_S = 0.005
SHORTEST_PART_S = 0.2
MIXED_LENGTHS = ((1.0, 4.0), (0.35, 0.95), (3.0, 8.0), (2.0, 6.0), (8.0, 15.0))
"""Shortest and longest part of a recording that is cut up, in turn."""
SHORT_LENGTHS = ((0.35, 0.95), (0.35, 0.95), (2.0, 6.0), (0.35, 0.95), (4.0, 10.0), (0.35, 0.95))

FEW_SPEAKERS = ("arctic", "librispeech-test-other", "ljspeech", "long-form", "noisy", "telephone")
"""Sets in English with several recordings of a speaker."""
ONE_UTTERANCE = ("librispeech-train-clean",)
OTHER_LANGUAGES = ("chinese", "dutch", "french", "german", "telephone", "many-languages")
PERSONS = {
    "telephone/en": "allison", "telephone/es": "allison", "telephone/fr": "june", "telephone/it": "carlo",
    "telephone/ru": "ivr", "long-form/bush_columbia_2003.wma": "bush",
    "long-form/mobydick_ch1_77s.flac": "wills", "long-form/two_cities_44s.wav": "two-cities",
    "many-languages/nl": "vl", "many-languages/13697_11991_000000.opus": "mls-13697",
    "many-languages/leopard_test_de.wav": "leopard-de", "many-languages/leopard_test_es.wav": "leopard-es",
    "many-languages/leopard_test_fr.wav": "leopard-fr", "many-languages/leopard_test_it.wav": "leopard-it",
    "many-languages/ru.wav": "deepspeech-ru", "many-languages/asr_example.wav": "funasr-zh",
    "many-languages/aishell-BAC009S0724W0121.wav": "S0724",
}  # fmt: skip
"""Speakers of recordings whose manifest names none: by the set and the language, or by the recording."""
NOISY = ("p287",)
"""Voices whose recordings hold noise, from which speech cannot be told by its level; they are counted and left out."""
HALVES = {"de": 0, "fr": 0, "nl": 0, "es": 1, "it": 1, "ru": 1, "zh": 1}
"""Languages other than English are for tuning (0) or for reporting (1); none has speakers enough for both."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a recording, or all of it."""

    samples: Floats
    speech: tuple[Region, ...]
    """Stretches of speech, from the start of the piece."""
    text: str | None
    """All its words; None where it is cut, since nobody knows which words are where."""


@dataclass(slots=True)
class Voice:
    """A speaker and what there is of it."""

    name: str
    language: str
    half: int  # 0 for tuning, 1 for reporting
    clips: list[tuple[Path, str]] = field(default_factory=list)  # with their words
    seconds: float = 0.0  # of all clips
    known: dict[tuple[Region, ...], list[Piece]] = field(default_factory=dict, repr=False)

    def pieces(self, lengths_s: tuple[Region, ...] = ()) -> list[Piece]:
        """Return whole recordings, or with lengths parts of them; recordings that are too long are cut in any case."""
        from harken.audio import load_audio

        if lengths_s in self.known:
            return self.known[lengths_s]
        pieces = self.known[lengths_s] = []
        for path, text in self.clips:
            samples = load_audio(path)
            if lengths_s or len(samples) > WHOLE_S * SAMPLE_RATE:
                pieces += cut_in_quiet(samples, lengths_s or MIXED_LENGTHS)
            elif speech := find_speech(samples):
                pieces.append(excerpt(samples, speech, text))
        return pieces


def read_voices(audio: Path) -> list[Voice]:
    """Return all voices that can be told apart; every second one of a kind is for tuning, the others for reporting."""
    english = [read_speakers(audio, sets, {"en"}) for sets in (FEW_SPEAKERS, ONE_UTTERANCE)]
    for voices in english:
        for index, voice in enumerate(voices):
            voice.half = index % 2
    others = read_speakers(audio, OTHER_LANGUAGES, HALVES.keys())
    for voice in others:
        voice.half = HALVES[voice.language]
    return [voice for voices in (*english, others) for voice in voices if voice.name not in NOISY]


def read_speakers(audio: Path, sets: Sequence[str], languages: Container[str | None]) -> list[Voice]:
    """Return the voices of some sets, each with the clips that it speaks."""
    from harken.manifests import read_manifests

    voices: dict[tuple[str, str], Voice] = {}
    # Of two lines that name one file, the one is right whose length is that of the file.
    for entry in read_manifests([audio / name for name in sets]):
        if entry.language not in languages or not entry.text or (name := person(entry)) is None:
            continue
        voice = voices.setdefault((name, entry.language), Voice(name=name, language=entry.language, half=0))
        voice.clips.append((entry.path, entry.text))
        voice.seconds += entry.seconds or 0.0
    return [*voices.values()]


def person(entry: Entry) -> str | None:
    """Return who speaks; None where nobody knows, or the recording is a copy of others."""
    if entry.set == "french":  # chapters by readers without names: each is a voice, never two in a conversation
        return f"librivox-{entry.path.name.split('_')[1]}"
    names = (f"{entry.set}/{entry.path.name}", f"{entry.set}/{entry.language}")
    return entry.speaker or next((PERSONS[name] for name in names if name in PERSONS), None)


def levels_db(samples: Floats) -> Any:
    """Return the level of each frame in dB, of what lies above about 100 Hz."""
    high = samples[1:] - np.float32(0.96) * samples[:-1]
    hop, size = round(HOP_S * SAMPLE_RATE), round(FRAME_S * SAMPLE_RATE)
    count = max(0, (len(high) - size) // hop + 1)
    if not count:
        return np.zeros(0)
    squares = np.concatenate([[0.0], np.cumsum(high.astype(np.float64) ** 2)])
    starts = np.arange(count) * hop
    return 10 * np.log10((squares[starts + size] - squares[starts]) / size + 1e-12)


def find_speech(samples: Floats, above_floor_db: float = ABOVE_FLOOR_DB) -> list[Region]:
    """Return where a clean recording of one speaker holds speech, every silence from 10 ms on left out."""
    levels = levels_db(samples)
    if not len(levels):
        return []
    peak, floor = np.percentile(levels, 99), np.percentile(levels, 5)
    threshold = np.clip(floor + above_floor_db, peak - BELOW_PEAK_DB[0], peak - BELOW_PEAK_DB[1])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (levels > threshold).astype(np.int8), [0]])))
    regions: list[Region] = []
    for start, end in edges.reshape(-1, 2):
        if (end - start) * HOP_S < SHORTEST_SPEECH_S:
            continue
        begin = max(0.0, start * HOP_S - EDGE_S)
        finish = min(len(samples) / SAMPLE_RATE, (end - 1) * HOP_S + FRAME_S + EDGE_S)
        if regions and begin <= regions[-1][1]:
            begin, _ = regions.pop()
        regions.append((float(begin), float(finish)))
    return regions


def bridge(regions: Sequence[Region], pause_s: float) -> list[Region]:
    """Join regions with less than a pause between them."""
    joined: list[Region] = []
    for start, end in sorted(regions):
        if joined and start - joined[-1][1] < pause_s:
            start, end = joined[-1][0], max(end, joined[-1][1])
            joined.pop()
        joined.append((start, end))
    return joined


def cut_in_quiet(samples: Floats, lengths_s: Sequence[Region]) -> Iterator[Piece]:
    """Yield parts of a recording, each cut where it is quietest between a shortest and a longest length.

    Lengths are taken in turn. Parts with less than 0.2 s of speech are left out.
    """
    speech, levels = find_speech(samples), levels_db(samples)
    quiet = np.convolve(levels, np.ones(5) / 5, "same") if len(levels) else levels
    start, end = (speech[0][0], speech[-1][1]) if speech else (0.0, 0.0)
    for shortest_s, longest_s in cycle(lengths_s):
        if start >= end:
            return
        stop = end
        if end - start > longest_s:
            first = round((start + shortest_s) / HOP_S)
            stop = (first + int(np.argmin(quiet[first : round((start + longest_s) / HOP_S)]))) * HOP_S + HOP_S
        part = [(max(start, s), min(stop, e)) for s, e in speech if s < stop and e > start]
        if sum(e - s for s, e in part) >= SHORTEST_PART_S:
            yield excerpt(samples, part, None)
        start = stop


def excerpt(samples: Floats, speech: Sequence[Region], text: str | None) -> Piece:
    """Return the part of a recording from its first speech to its last, faded in and out."""
    first, last = speech[0][0], speech[-1][1]
    kept = samples[round(first * SAMPLE_RATE) : round(last * SAMPLE_RATE)].copy()
    ramp = np.linspace(0, 1, round(FADE_S * SAMPLE_RATE), dtype=np.float32)
    kept[: len(ramp)] *= ramp
    kept[-len(ramp) :] *= ramp[::-1]
    return Piece(kept, tuple((start - first, end - first) for start, end in speech), text)

"""Speech joined into pieces of at most a window.

Stretches of speech are packed into windows as a transcription packs them, those of one recording in their order, then
those of the next, so that the encoder's window is full and the decoder learns what it will be asked. In which order
recordings follow one another is drawn anew as often as one likes, and so is how fast they are played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from harken.audio import load
from harken.contract import Floats
from harken.training.options import DataOptions
from harken.training.recordings import LONGEST_S, Recording
from harken.types import SAMPLE_RATE

PAUSE_S = 0.5
"""Longest pause that is put between two recordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a recording, and the silence put before it; `text` is what is said, where that is known."""

    path: str
    start_s: float
    end_s: float
    pause_s: float = 0.0
    text: str | None = None

    @property
    def length_s(self) -> float:
        """How long it lasts with the silence before it."""
        return self.pause_s + self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is heard at once.

    Attributes
    ----------
    parts : tuple of Part
    group : str
    language : str or None
    held_out : bool
    silent : bool
        Whether nobody speaks.
    speed : float
        Above 1 is faster, and higher.
    untimed, prompted : bool
        Whether it is learnt without timestamps, and with the text before it, too.
    """

    parts: tuple[Part, ...]
    group: str
    language: str | None
    held_out: bool
    silent: bool = False
    speed: float = 1.0
    untimed: bool = False
    prompted: bool = False

    @property
    def line(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of(cls, line: str) -> Piece:
        """Read a line back."""
        values = json.loads(line)
        return cls(**values | {"parts": tuple(Part(**part) for part in values["parts"])})

    @property
    def key(self) -> str:
        """A name that no other piece has."""
        return hashlib.sha256(self.line.encode()).hexdigest()[:24]

    @property
    def duration_s(self) -> float:
        """How long it lasts."""
        return sum(map(_length_s, self.parts)) / self.speed

    def samples(self) -> Floats:
        """Samples of all parts, shape (samples,), float32, 16 kHz."""
        samples = np.concatenate([stretch for part in self.parts for stretch in _stretches(part)])
        if self.speed == 1.0:
            return samples
        at = np.arange(0, len(samples) - 1, self.speed)
        played: Floats = np.interp(at, np.arange(len(samples)), samples).astype(np.float32)
        return played

    def spans_s(self) -> Iterator[tuple[float, float, str | None]]:
        """Where each part begins and ends in the piece, in seconds, and what is said in it."""
        end_s = 0.0
        for part in self.parts:
            start_s = end_s + part.pause_s / self.speed
            end_s += part.length_s / self.speed
            yield start_s, end_s, part.text


def make_pieces(recordings: Sequence[Recording], options: DataOptions) -> Iterator[Piece]:
    """Cut and join recordings: what is measured with once as it is, the rest as often as `options` say.

    Equal recordings and options give equal pieces, whatever has been made of them before.
    """
    groups: dict[tuple[bool, str, str], list[Recording]] = {}
    for recording in recordings:
        key = not recording.held_out, recording.group, recording.language or ""
        groups.setdefault(key, []).append(recording)
    for draw in range(options.draws):
        for key, members in sorted(groups.items(), key=lambda item: item[0]):
            if draw == 0 or not members[0].held_out:
                # Numbers out of a text: it is to seed alike on every machine.
                rng = np.random.default_rng([options.seed, draw, *f"{key}".encode()])
                yield from _draw(members, options, rng, vary=options.vary if draw else 0.0)


def _draw(
    recordings: Sequence[Recording], options: DataOptions, rng: np.random.Generator, *, vary: float
) -> Iterator[Piece]:
    order = [recordings[i] for i in rng.permutation(len(recordings))]
    spoken = [
        Part(path=str(recording.path), **asdict(speech)) for recording in order for speech in recording.speech
    ]
    model = Piece(
        parts=(), group=order[0].group, language=order[0].language, held_out=order[0].held_out
    )  # fmt: skip
    for parts in _packed(spoken, options.alone, rng):
        # However slow, it must fit into the window.
        slowest = max(1.0 - vary, min(1.0, sum(map(_length_s, parts)) / LONGEST_S))
        yield replace(
            model,
            parts=parts,
            speed=round(float(rng.uniform(slowest, 1.0 + vary)), 3) if vary else 1.0,
            untimed=bool(rng.random() < options.untimed),
            prompted=bool(rng.random() < options.prompted),
        )
    for recording in order:
        if not recording.speech and rng.random() < options.silence:
            part = Part(path=str(recording.path), start_s=0.0, end_s=min(recording.duration_s, LONGEST_S))
            yield replace(model, parts=(part,), silent=True)


def _packed(parts: Iterable[Part], alone: float, rng: np.random.Generator) -> Iterator[tuple[Part, ...]]:
    """Parts side by side, as many as fit; some of those that come first stay alone."""
    pack: list[Part] = []
    room_s = 0.0
    for part in parts:
        if pack and pack[-1].path != part.path:
            part = replace(part, pause_s=round(float(rng.uniform(0, PAUSE_S)), 2))
        if pack and part.length_s > room_s:
            yield tuple(pack)
            pack, part = [], replace(part, pause_s=0.0)
        if not pack:
            room_s = 0.0 if rng.random() < alone else LONGEST_S
        pack.append(part)
        room_s -= part.length_s
    if pack:
        yield tuple(pack)


def _length_s(part: Part) -> float:
    return part.length_s


def _stretches(part: Part) -> tuple[Floats, Floats]:
    span = slice(round(part.start_s * SAMPLE_RATE), round(part.end_s * SAMPLE_RATE))
    return np.zeros(round(part.pause_s * SAMPLE_RATE), np.float32), _samples(part.path)[span]


@lru_cache(maxsize=2)
def _samples(path: str) -> Floats:
    return load(path)

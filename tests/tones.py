"""Sound that says words, and a model that hears them: for tests of live sessions that know what is said, and when.

A word is a tone, its letters are its tokens. The model knows a word by the band that is loudest in the log-mel, and
listens to each letter where it is spoken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from zlib import crc32

import numpy as np

from drafting import Clock, Table, TableSession
from harken.audio import mel_filters
from harken.contract import Floats
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, SAMPLE_RATE
from models import DIMS, TOKENIZER

SPELLED: dict[str, Any] = {
    "language": "en",
    "suppress_blank": False,
    "suppress_tokens": (),
    "temperatures": (0.0,),
}
"""Options of a transcription with which words may begin with a space that is a token of its own."""

N_MELS = 40
WORDS = (" ba", " co", " du", " fe", " gi", " ha", " jo", " ku", " le", " mi.", " na", " po")
WORD_S, GAP_S = 0.3, 0.1
_FIRST_BAND, _BANDS_APART = 4, 3
_LISTENING = 5
"""Positions that a token listens to: as many as the median of 7 leaves alone."""
_LEAST_POSITIONS = 2
"""Less of a tone is not heard."""
_CLEAR = 1.0
"""By how much the loudest band of a tone is above the softest, in units of normalised log-mel."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Sound, and what is said in it.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32, 16 kHz
    words : tuple of (str, float, float)
        Each with the seconds at which it begins and ends.
    """

    samples: Floats
    words: tuple[tuple[str, float, float], ...]

    @property
    def text(self) -> str:
        return "".join(word for word, _, _ in self.words)

    def __add__(self, other: Speech) -> Speech:
        by_s = len(self.samples) / SAMPLE_RATE
        moved = tuple((word, start_s + by_s, end_s + by_s) for word, start_s, end_s in other.words)
        return Speech(np.concatenate([self.samples, other.samples]), self.words + moved)


def silence(seconds: float) -> Speech:
    """Nothing at all."""
    return Speech(np.zeros(round(seconds * SAMPLE_RATE), np.float32), ())


def saying(*words: int, word_s: float = WORD_S, gap_s: float = GAP_S) -> Speech:
    """Say some of `WORDS`, with a little silence behind each; not the same one twice in a row."""
    its = silence(0)
    for word in words:
        its = its + Speech(_tone(word, word_s), ((WORDS[word], 0.0, word_s),)) + silence(gap_s)
    return its


def rambling(count: int, *, seed: int = 0, gap_s: float = GAP_S) -> Speech:
    """Say so many words at random, without the end of a sentence."""
    rng = np.random.default_rng(seed)
    words = [word for word, text in enumerate(WORDS) if not text.endswith(".")]
    turns = np.cumsum(rng.integers(1, len(words), count)) % len(words)
    return saying(*(words[turn] for turn in turns), gap_s=gap_s)


def _tone(word: int, seconds: float) -> Floats:
    hertz = float(mel_filters(N_MELS)[_band(word)].argmax()) * 40
    times_s = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    fade = np.clip(np.minimum(times_s, times_s[::-1]) / 0.01, 0, 1)
    tone: Floats = (0.3 * fade * np.sin(2 * np.pi * hertz * times_s)).astype(np.float32)
    return tone


def _band(word: int) -> int:
    return _FIRST_BAND + _BANDS_APART * word


@dataclass(frozen=True, slots=True)
class Said:
    """What the model hears in a window: tokens, and the position that each listens to, and what comes behind them."""

    tokens: tuple[int, ...]
    places: tuple[int, ...]
    positions: int


@dataclass(frozen=True, slots=True)
class Heard:
    """`harken.contract.Features`: what is said in some windows."""

    windows: tuple[Said, ...]

    @property
    def n_windows(self) -> int:
        return len(self.windows)


class Ear:
    """`harken.contract.Encoder`: which tone is heard at each position, -1 for none."""

    def __init__(self) -> None:
        self.tones: list[int] = []
        self.final_positions = 0

    @property
    def positions(self) -> int:
        return len(self.tones)


class Listener(Table):
    """`harken.contract.Backend` that hears `Speech`.

    Parameters
    ----------
    positions : int
        Longest window.
    fickle : bool
        Whether words of the last second are taken for others, differently with each window.
    clock : Clock or None
    hear_s : float
        What a window takes by the clock, whether of a stream or of an utterance as a whole.

    Attributes
    ----------
    heard_frames : list of int
        Length of each window of a stream.
    encoded_frames : list of int
        Length of each window of an utterance as a whole.
    """

    def __init__(
        self, *, positions: int = 600, fickle: bool = False, clock: Clock | None = None, hear_s: float = 0.0
    ) -> None:
        super().__init__(_next, clock=clock)
        self.dims = replace(DIMS, n_mels=N_MELS, n_audio_ctx=positions, n_text_ctx=224)
        self.fickle, self.hear_s = fickle, hear_s
        self.heard_frames: list[int] = []
        self.encoded_frames: list[int] = []

    @property
    def calls(self) -> int:
        """How often anything was asked of it."""
        return len(self.heard_frames) + len(self.encoded_frames) + len(self.sessions)

    def encode(self, mel: Floats) -> Heard:
        self.encoded_frames += [mel.shape[2]] * len(mel)
        self._spend()
        return Heard(tuple(self._said(_tones(its)) for its in mel))

    def open_encoder(self, history_frames: int) -> Ear:
        return Ear()

    def encode_chunk(self, states: Sequence[Ear], mel: Floats, final_frames: int) -> None:
        frames = mel.shape[2] // FRAMES_PER_POSITION * FRAMES_PER_POSITION
        self.heard_frames += [frames] * len(mel)
        self._spend()
        for ear, its in zip(states, mel, strict=True):
            ear.tones = ear.tones[: ear.final_positions] + _tones(its[:, :frames])
            ear.final_positions += final_frames // FRAMES_PER_POSITION
            assert ear.positions <= self.dims.n_audio_ctx, "a stream has outgrown the model"

    def stream_features(self, states: Sequence[Ear]) -> Heard:
        return Heard(tuple(self._said(ear.tones) for ear in states))

    def open_session(
        self, features: Heard, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ListeningSession:
        self.sessions.append(ListeningSession(self, [features.windows[row] for row in row_windows], capacity))
        return self.sessions[-1]

    def _said(self, tones: Sequence[int]) -> Said:
        tokens: list[int] = []
        places: list[int] = []
        at = end = 0
        for tone, run in groupby(tones):
            length = len([*run])
            if tone >= 0 and length >= _LEAST_POSITIONS:
                spelled = TOKENIZER.encode(WORDS[self._taken(tone, at + length, tones)])
                # The space in front of a word listens to the silence before it.
                places += [max(end, at - _LISTENING), *(at + _LISTENING * n for n in range(len(spelled) - 1))]
                tokens += spelled
                end = at + length
            at += length
        return Said((*tokens, TOKENIZER.eot), (*places, end), len(tones))

    def _taken(self, tone: int, end: int, tones: Sequence[int]) -> int:
        """The word that a tone is taken for."""
        last = max(at for at, its in enumerate(tones) if its >= 0)
        mood = crc32(np.array(tones, np.int8).tobytes()) >> tone
        return (tone + mood % 3) % len(WORDS) if self.fickle and end > last - FRAMES_PER_SECOND // 2 else tone

    def _spend(self) -> None:
        if self.clock:
            self.clock.spend(self.hear_s)


class ListeningSession(TableSession):
    """Its rows are at their own places of what is said in their windows."""

    def attention(self, row: int) -> Floats:
        said, seen = self.rows[row]
        weights = np.full((1, len(seen), said.positions), 1e-6, np.float32)
        first = _prompt(seen) - 1
        for token in range(first, len(seen)):
            place = said.places[min(token - first, len(said.places) - 1)]
            weights[0, token, place : place + _LISTENING] = 1
        return weights / weights.sum(axis=-1, keepdims=True)


def _tones(mel: Floats) -> list[int]:
    """Which tone is loudest at each position of normalised log-mel."""
    bands = mel.argmax(axis=0)
    clear = mel.max(axis=0) - mel.min(axis=0) > _CLEAR
    tones = np.where(clear, (bands - _FIRST_BAND) // _BANDS_APART, -1)
    heard: list[int] = tones[::FRAMES_PER_POSITION].tolist()
    return heard


def _prompt(seen: tuple[int, ...]) -> int:
    """How many tokens the prompt has."""
    start = len(seen) - seen[::-1].index(TOKENIZER.sot) - 1 + len(TOKENIZER.sot_sequence("en"))
    return start + (seen[start : start + 1] == (TOKENIZER.no_timestamps,))


def _next(said: Said, seen: tuple[int, ...]) -> Floats:
    """What is said behind as many tokens of text; with timestamps, from the first of a window to the last."""
    logits = np.zeros(DIMS.n_vocab, np.float32)
    if TOKENIZER.sot not in seen or (prompt := _prompt(seen)) > len(seen):
        return logits
    text, begin = said.tokens, TOKENIZER.timestamp_begin
    if seen[prompt - 1] != TOKENIZER.no_timestamps:
        text = (begin, *text[:-1], begin + said.places[-1], text[-1])
    logits[text[min(len(seen) - prompt, len(text) - 1)]] = 30
    return logits

"""Synthetic speech in which each word is a tone, and a backend that transcribes it.

The backend knows a word by the mel band with the most energy, and each letter is a token. A token attends to where
its letter is spoken, so that tests know the text, and its times, of any part of the audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from zlib import crc32

import numpy as np

from fakes.backends import ScriptedBackend, ScriptedBackendSession
from fakes.clock import FakeClock
from harken.audio import mel_filters
from harken.contract import Floats
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, SAMPLE_RATE
from tiny_models import DIMS, TOKENIZER

LETTER_OPTIONS: dict[str, Any] = {
    "language": "en",
    "suppress_blank": False,
    "suppress_tokens": (),
    "temperatures": (0.0,),
}
"""Options of a transcription in which a word may begin with a space that is a token of its own."""

N_MELS = 40
WORDS = (" ba", " co", " du", " fe", " gi", " ha", " jo", " ku", " le", " mi.", " na", " po")
WORD_S, GAP_S = 0.3, 0.1
_FIRST_BAND, _BAND_SPACING = 4, 3
_ATTENDED_POSITIONS = 5
"""Positions that a token attends to: enough to pass the median filter of 7."""
_MIN_POSITIONS = 2
"""Length below which a tone is ignored."""
_MIN_CONTRAST = 1.0
"""Smallest difference between the bands of most and least energy of a tone, in units of normalised log-mel."""


# --- audio -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToneSpeech:
    """Audio at 16 kHz, and the words in it: text, start and end in seconds."""

    samples: Floats
    words: tuple[tuple[str, float, float], ...]

    @property
    def text(self) -> str:
        return "".join(word for word, _, _ in self.words)

    def __add__(self, other: ToneSpeech) -> ToneSpeech:
        shift_s = len(self.samples) / SAMPLE_RATE
        shifted = tuple((word, start_s + shift_s, end_s + shift_s) for word, start_s, end_s in other.words)
        return ToneSpeech(np.concatenate([self.samples, other.samples]), self.words + shifted)


def silence(seconds: float) -> ToneSpeech:
    """Make audio without any words."""
    return ToneSpeech(np.zeros(round(seconds * SAMPLE_RATE), np.float32), ())


def speak_words(*words: int, gap_s: float = GAP_S) -> ToneSpeech:
    """Speak some of `WORDS`, each followed by a short silence; no word may follow itself."""
    speech = silence(0)
    for word in words:
        speech = speech + ToneSpeech(_tone(word), ((WORDS[word], 0.0, WORD_S),)) + silence(gap_s)
    return speech


def speak_random_words(count: int, *, seed: int = 0, gap_s: float = GAP_S) -> ToneSpeech:
    """Speak random words, none of which ends a sentence."""
    rng = np.random.default_rng(seed)
    words = [word for word, text in enumerate(WORDS) if not text.endswith(".")]
    indices = np.cumsum(rng.integers(1, len(words), count)) % len(words)
    return speak_words(*(words[index] for index in indices), gap_s=gap_s)


def _tone(word: int) -> Floats:
    hertz = float(mel_filters(N_MELS)[_FIRST_BAND + _BAND_SPACING * word].argmax()) * 40
    times_s = np.arange(round(WORD_S * SAMPLE_RATE)) / SAMPLE_RATE
    fade = np.clip(np.minimum(times_s, times_s[::-1]) / 0.01, 0, 1)
    tone: Floats = (0.3 * fade * np.sin(2 * np.pi * hertz * times_s)).astype(np.float32)
    return tone


# --- the backend -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToneWindow:
    """The text of a window with its end, the first position that each token attends to, and the window's length."""

    tokens: tuple[int, ...]
    attended: tuple[int, ...]
    positions: int


@dataclass(frozen=True, slots=True)
class ToneFeatures:
    """`harken.contract.Features`: the text of each window."""

    windows: tuple[ToneWindow, ...]

    @property
    def n_windows(self) -> int:
        return len(self.windows)


class ToneEncoderState:
    """`harken.contract.StreamingEncoderState`: the tone at each position, -1 for none."""

    def __init__(self) -> None:
        self.tones: list[int] = []
        self.final_positions = 0


class ToneBackend(ScriptedBackend):
    """`harken.contract.Backend` that transcribes `ToneSpeech` in windows of at most so many positions.

    An unstable one confuses words of the last half second with others, differently in each window. Encoding a window
    takes `encode_s` on the clock. `stream_frames` are the lengths of windows of streams, `encoded_frames` of others.
    """

    def __init__(
        self,
        *,
        positions: int = 600,
        unstable: bool = False,
        clock: FakeClock | None = None,
        encode_s: float = 0.0,
    ) -> None:
        super().__init__(_next_logits, clock=clock)
        self.dims = replace(DIMS, n_mels=N_MELS, n_audio_ctx=positions, n_text_ctx=224)
        self.unstable, self.encode_s = unstable, encode_s
        self.stream_frames: list[int] = []
        self.encoded_frames: list[int] = []

    @property
    def calls(self) -> int:
        """Number of windows encoded and of sessions opened."""
        return len(self.stream_frames) + len(self.encoded_frames) + len(self.sessions)

    def encode(self, mel: Floats, *, padded: bool = False) -> ToneFeatures:
        self.encoded_frames += [mel.shape[2]] * len(mel)
        self._spend()
        return ToneFeatures(tuple(self._transcribe(_find_tones(window)) for window in mel))

    def open_encoder(self, history_frames: int) -> ToneEncoderState:
        return ToneEncoderState()

    def encode_chunk(self, states: Sequence[ToneEncoderState], mel: Floats, final_frames: int) -> None:
        frames = mel.shape[2] // FRAMES_PER_POSITION * FRAMES_PER_POSITION
        self.stream_frames += [frames] * len(mel)
        self._spend()
        for state, window in zip(states, mel, strict=True):
            state.tones = state.tones[: state.final_positions] + _find_tones(window[:, :frames])
            state.final_positions += final_frames // FRAMES_PER_POSITION
            assert len(state.tones) <= self.dims.n_audio_ctx, "a stream is longer than the model's context"

    def stream_features(self, states: Sequence[ToneEncoderState]) -> ToneFeatures:
        return ToneFeatures(tuple(self._transcribe(state.tones) for state in states))

    def open_session(
        self, features: ToneFeatures, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ToneSession:
        self.sessions.append(ToneSession(self, [features.windows[row] for row in row_windows], capacity))
        return self.sessions[-1]

    def _transcribe(self, tones: Sequence[int]) -> ToneWindow:
        tokens: list[int] = []
        attended: list[int] = []
        start = previous_end = 0
        for tone, run in groupby(tones):
            length = len([*run])
            if tone >= 0 and length >= _MIN_POSITIONS:
                letters = TOKENIZER.encode(WORDS[self._recognize(tone, start + length, tones)])
                # The space in front of a word attends to the silence before it.
                attended.append(max(previous_end, start - _ATTENDED_POSITIONS))
                attended += [start + _ATTENDED_POSITIONS * n for n in range(len(letters) - 1)]
                tokens += letters
                previous_end = start + length
            start += length
        return ToneWindow((*tokens, TOKENIZER.eot), (*attended, previous_end), len(tones))

    def _recognize(self, tone: int, end: int, tones: Sequence[int]) -> int:
        """Return the word for a tone: another one near the end of the audio if `unstable`."""
        last = max(position for position, at in enumerate(tones) if at >= 0)
        offset = (crc32(np.array(tones, np.int8).tobytes()) >> tone) % 3
        return (tone + offset) % len(WORDS) if self.unstable and end > last - FRAMES_PER_SECOND // 2 else tone

    def _spend(self) -> None:
        if self.fake_clock:
            self.fake_clock.spend(self.encode_s)


class ToneSession(ScriptedBackendSession):
    """`ScriptedBackendSession` whose tokens attend to where their letters are spoken."""

    def attention(self, row: int) -> Floats:
        window, seen = self.rows[row]
        weights = np.full((1, len(seen), window.positions), 1e-6, np.float32)
        first = _prompt_length(seen) - 1
        for token in range(first, len(seen)):
            position = window.attended[min(token - first, len(window.attended) - 1)]
            weights[0, token, position : position + _ATTENDED_POSITIONS] = 1
        return weights / weights.sum(axis=-1, keepdims=True)


def _find_tones(mel: Floats) -> list[int]:
    """Return the tone with the most energy at each position of normalised log-mel, -1 for none."""
    bands = mel.argmax(axis=0)
    is_tone = mel.max(axis=0) - mel.min(axis=0) > _MIN_CONTRAST
    tones = np.where(is_tone, (bands - _FIRST_BAND) // _BAND_SPACING, -1)
    at_positions: list[int] = tones[::FRAMES_PER_POSITION].tolist()
    return at_positions


def _prompt_length(seen: tuple[int, ...]) -> int:
    start = len(seen) - seen[::-1].index(TOKENIZER.sot) - 1 + len(TOKENIZER.sot_sequence("en"))
    return start + (seen[start : start + 1] == (TOKENIZER.no_timestamps,))


def _next_logits(window: ToneWindow, seen: tuple[int, ...]) -> Floats:
    """Return logits of the next token of a window; with timestamps, of one segment from its start to its end."""
    logits = np.zeros(DIMS.n_vocab, np.float32)
    if TOKENIZER.sot not in seen or (prompt := _prompt_length(seen)) > len(seen):
        return logits
    text, begin = window.tokens, TOKENIZER.timestamp_begin
    if seen[prompt - 1] != TOKENIZER.no_timestamps:
        text = (begin, *text[:-1], begin + window.attended[-1], text[-1])
    logits[text[min(len(seen) - prompt, len(text) - 1)]] = 30
    return logits

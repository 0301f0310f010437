"""Constants of Whisper's audio and time resolution, and the dimensions of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from harken.errors import OptionError

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
WINDOW_S = 30
WINDOW_SAMPLES = WINDOW_S * SAMPLE_RATE
WINDOW_FRAMES = WINDOW_S * FRAMES_PER_SECOND
FRAMES_PER_POSITION = 2
"""Mel frames per position of the encoder output, which is also the resolution of timestamps."""
LEFT_CONTEXT_FRAMES = 2
"""Mel frames before a chunk of a stream that the two convolutions read: one for each of them."""
TIMESTAMP_STEP_S = FRAMES_PER_POSITION / FRAMES_PER_SECOND


class WordHead(NamedTuple):
    """A head of the decoder's cross-attention that attends to one place while a token is picked."""

    layer: int
    head: int
    lag: int  # positions from the start of the token, if it is the first of a word, to that place; negative before it
    tells_end: bool = False  # the place lies as far from the end of the token before, in speech and at pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The dimensions of one Whisper model (the reference's `ModelDimensions`).

    With ``n_audio_layer=0`` they are those of a decoder alone, which attends to the encoder output of another model;
    `n_audio_ctx`, `n_audio_state` and `n_mels` are that model's.

    Raises
    ------
    OptionError
        If a dimension is outside what is allowed, or the heads do not divide the state.
    """

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not (0 if name == "n_audio_layer" else 1) <= value < 1 << 20:
                raise OptionError(name, value, "a positive integer below 1048576")
        for side in ("audio", "text"):
            state, heads = getattr(self, f"n_{side}_state"), getattr(self, f"n_{side}_head")
            if state % heads:
                raise OptionError(f"n_{side}_head", heads, f"a divisor of n_{side}_state={state}")

    @property
    def has_encoder(self) -> bool:
        """True if the model has an encoder of its own."""
        return self.n_audio_layer > 0

    def without_encoder(self) -> Dims:
        """Return the dimensions of the decoder alone, for a model that uses the encoder of another."""
        return replace(self, n_audio_layer=0)

    @property
    def multilingual(self) -> bool:
        """True if the vocabulary is the multilingual one (the reference's `Whisper.is_multilingual`)."""
        return self.n_vocab >= 51865

"""A piece as it is learnt from: what the encoder made of it, and texts about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harken.contract import Ints

HalfFloats = NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One text about a piece.

    Attributes
    ----------
    tokens : ndarray of shape (n,), int64
        Prompt, text and end of text.
    first : int
        Where the text begins, behind the prompt: what comes from here on is to be foretold.
    states : ndarray of shape (n - first, n_text_state), float16; or (0, n_text_state)
        Final states of the main decoder where it foretells ``tokens[first:]``: multiplied with the token embedding
        they are its logits, all of them and not only the best few. Empty where no decoder was asked.
    like : ndarray of shape (n - first, n_text_state of the student), float16; or None
        States that a student should have there, where these are not those of the main decoder.
    """

    tokens: Ints
    text_start: int
    teacher_states: HalfFloats
    target_states: HalfFloats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A piece as it is learnt from.

    Attributes
    ----------
    heard : ndarray of shape (positions, n_audio_state), or (n_mels, frames), float16
        The encoder's output, or where the encoder learns too, what goes into it.
    rows : tuple of Row
        None where the main model did not make sense of the piece.
    """

    audio_features: HalfFloats
    sequences: tuple[TrainingSequence, ...]

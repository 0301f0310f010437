"""Training examples: the encoder output of a window, and token sequences with the teacher's states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats, Ints

HalfFloats = NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One text of a window.

    Attributes
    ----------
    tokens : ndarray of shape (n,), int64
        Prompt, text and end of text.
    text_start : int
        Start of the text behind the prompt: the tokens from here on are to be predicted.
    teacher_states : ndarray of shape (n - text_start, n_text_state), float16; or (0, n_text_state)
        Final states of the main decoder where it predicts ``tokens[text_start:]``. Multiplied with the token
        embedding they give all of its logits. Empty where no decoder was run.
    target_states : ndarray of shape (n - text_start, n_text_state of the student), float16; or None
        States that the student should have there, where these are not those of the main decoder.
    """

    tokens: Ints
    text_start: int
    teacher_states: HalfFloats
    target_states: HalfFloats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One window to learn from.

    Attributes
    ----------
    audio_features : ndarray of shape (positions, n_audio_state) or (n_mels, frames), float16; or (samples,), float32
        The output of the encoder; or where the encoder is trained too its input, or the audio of which it hears parts.
    sequences : tuple of TrainingSequence
        Empty where the transcript of the main model was rejected.
    """

    audio_features: HalfFloats | Floats
    sequences: tuple[TrainingSequence, ...]

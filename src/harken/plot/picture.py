"""What there is to see of a stretch of a recording, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from harken.audio import mel_filters
from harken.contract import Floats
from harken.results import Attempt, Segment, Word
from harken.types import FRAMES_PER_SECOND, SAMPLE_RATE

TICKS_HZ = (500, 1000, 2000, 4000)
ATTENTION_RANGE = (-0.5, 4.0)
"""Darkest and lightest of what tokens listened to, in standard deviations over the tokens."""
ENCODER_POSITION_S = 0.02
"""Length of one position of the encoder's output, and of one step of timestamps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedWindow:
    """One window as it was decoded.

    Parameters
    ----------
    start_s, end_s : float
        What it holds of the recording.
    tokens : tuple of str
        Readable, the end of text included if it was reached.
    probabilities : tuple of float
        One a token, 0 to 1, under the rules of decoding.
    listening : ndarray of shape (tokens, steps), float32
        What each token listened to more than the others did, as dynamic time warping sees it; nan where a token has
        no part in that.
    begins_s : tuple of (float or None)
        When each token was spoken along the path of dynamic time warping; None where it has no part in that.
    attempts : tuple of Attempt
        What was tried, the one kept last.
    """

    start_s: float
    end_s: float
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    attention: Floats
    token_starts_s: tuple[float | None, ...]
    attempts: tuple[Attempt, ...]

    @property
    def dtw_path(self) -> tuple[tuple[float, int], ...]:
        """Corners of the path: when each token begins, and its row; then the end of the window."""
        corners = [(begin_s, row) for row, begin_s in enumerate(self.token_starts_s) if begin_s is not None]
        return (*corners, (self.end_s, corners[-1][1] + 1)) if corners else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """Something that was said: a word, or a segment that has no words, or one that was left out.

    Parameters
    ----------
    start_s, end_s : float
    text : str
    probability : float
        0 to 1.
    reason : str or None
        Why it was left out, if it was.
    """

    start_s: float
    end_s: float
    text: str
    probability: float
    reason: str | None = None

    @property
    def label(self) -> str:
        """What is written on it."""
        return self.text if self.reason is None else f"{self.text} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlotData:
    """A stretch of a recording; all times are seconds from the start of the recording.

    Parameters
    ----------
    title : str
    start_s : float
        Where the stretch begins.
    mel : ndarray of shape (n_mels, frames), float32, normalised log10 mel
    speech : ndarray of shape (chunks,), float32
        Probability that somebody speaks, 0 to 1.
    chunk_s : float
        Length of one chunk.
    thresholds : tuple of float
        Speech begins at the first of them and ends below the second.
    regions : tuple of (float, float)
        Where somebody speaks.
    windows : tuple of Heard
        In order of time.
    marks : tuple of Mark
        In order of time.
    """

    title: str
    start_s: float
    mel: Floats
    speech_probabilities: Floats
    vad_chunk_s: float
    vad_thresholds: tuple[float, float]
    speech_regions: tuple[tuple[float, float], ...]
    windows: tuple[DecodedWindow, ...]
    text_spans: tuple[TextSpan, ...]

    @property
    def end_s(self) -> float:
        """Where the stretch ends."""
        return self.start_s + len(self.mel.T) / FRAMES_PER_SECOND

    @property
    def first_rows(self) -> tuple[int, ...]:
        """Row of the first token of each window, and how many there are, where they all stand below one another."""
        return tuple(accumulate((len(window.tokens) for window in self.windows), initial=0))

    @property
    def token_labels(self) -> tuple[str, ...]:
        """One a row, with spaces and signs that cannot be seen spelled out."""
        tokens = (token for window in self.windows for token in window.tokens)
        return tuple(repr(token)[1:-1].replace(" ", "·") for token in tokens)

    @property
    def token_probabilities(self) -> tuple[float, ...]:
        """One a row."""
        return tuple(probability for window in self.windows for probability in window.probabilities)

    @property
    def max_attempts(self) -> int:
        """Rungs of the fallback ladder that were used at most."""
        return max((len(window.attempts) for window in self.windows), default=0)


def text_spans_of(segment: Segment, reason: str | None = None) -> tuple[TextSpan, ...]:
    """What a segment shows: its words, or itself where it has none."""
    whole = Word(
        start_s=segment.start_s,
        end_s=segment.end_s,
        text=segment.text,
        probability=float(np.exp(min(0.0, segment.avg_logprob))),
    )
    words = segment.words if segment.words and reason is None else (whole,)
    return tuple(
        TextSpan(
            start_s=word.start_s,
            end_s=word.end_s,
            text=word.text.strip(),
            probability=word.probability,
            reason=reason,
        )
        for word in words
    )


def mel_band(hertz: float, n_mels: int) -> int:
    """Mel band that listens to a frequency most."""
    bins = mel_filters(n_mels).shape[1]
    return int(np.argmax(mel_filters(n_mels)[:, round(hertz / (SAMPLE_RATE / 2) * (bins - 1))]))


def describe_attempt(attempt: Attempt) -> str:
    """One rung of the fallback ladder in words."""
    if attempt.reason:
        return f"temperature {attempt.temperature:g} rejected: {attempt.reason}"
    return (
        f"temperature {attempt.temperature:g} kept: average log-probability {attempt.avg_logprob:.2f}, "
        f"compression ratio {attempt.compression_ratio:.2f}, no-speech probability {attempt.no_speech_prob:.2f}"
    )

"""How likely it is that a segment was invented, from what is known about it; nothing here hears or decodes.

Each observation weighs for or against, in log-odds, and the sum becomes a probability. The weights were chosen by hand
on segments that were true and segments that were not; the two are far apart (docs/decisions/guard.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harken.audio.vad import CHUNK_SAMPLES
from harken.transcribe.chunking import FrameSpans
from harken.transcribe.phrases import is_silence_phrase, is_subtitle_credit, normalize_phrase
from harken.types import HOP_SAMPLES

PRIOR_LOG_ODDS = -3.0
"""Log-odds of a segment that nothing speaks for or against."""
WEIGHT_CURVES = {
    "speech_prob": ("speech probability", (0.0, 0.4, 0.7), (7.0, -0.5, -2.0)),
    "attention_concentration": ("attention", (0.1, 0.4), (1.5, -2.0)),
    "avg_logprob": ("average log-probability", (-1.4, 0.2), (3.0, -3.0)),
    "no_speech_prob": ("no-speech probability", (0.0, 1.0), (-1.5, 1.5)),
    "compression_ratio": ("compression ratio", (1.8, 2.8), (0.0, 2.0)),
}
"""What each number weighs: its name in words, some of its values, and their weights; straight lines between."""
SILENCE_PHRASE_WEIGHT, SUBTITLE_CREDIT_WEIGHT = 2.5, 6.0

_MIN_TOKEN_S = 0.1  # what a token of speech takes at least
_MAX_SPARSE_SPEECH_WEIGHT = 1.5  # most that little speech weighs where there is enough of it for the text
_MIN_REPORTED_WEIGHT = 1.0  # from this weight on, an observation is named
_PEAK_RADIUS_POSITIONS = 10  # 0.2 s: about a token of speech


@dataclass(frozen=True, slots=True, kw_only=True)
class HallucinationFeatures:
    """What is known about one segment.

    Attributes
    ----------
    text : str
    tokens : int
        How many tokens of text it has.
    duration_s : float
        How much sound it stands on, without what was left out between regions.
    avg_logprob, no_speech_prob, compression_ratio : float
        Those of its window (see `harken.results.Attempt`).
    speech_prob : float or None
        Mean probability of speech under it, 0 to 1, by voice activity detection; None where there was none.
    attention : float or None
        How much of its attention each token had at one place, 0 to 1 (see `concentration`); None if not known.
    """

    text: str
    n_tokens: int
    duration_s: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    speech_prob: float | None = None
    attention_concentration: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HallucinationVerdict:
    """What the facts say.

    Attributes
    ----------
    score : float
        How likely it is that the segment was invented, 0 to 1.
    reason : str or None
        What speaks for that, the strongest first; None where nothing does.
    """

    score: float
    reason: str | None


def score_hallucination(features: HallucinationFeatures) -> HallucinationVerdict:
    """Weigh what is known about a segment."""
    evidence = list(_evidence(features))
    log_odds = PRIOR_LOG_ODDS + sum(weight for weight, _ in evidence)
    reported = sorted((-weight, words) for weight, words in evidence if weight >= _MIN_REPORTED_WEIGHT)
    return HallucinationVerdict(
        score=1 / (1 + math.exp(-log_odds)), reason=", ".join(words for _, words in reported) or None
    )


def _evidence(features: HallucinationFeatures) -> Iterator[tuple[float, str]]:
    """Weights in log-odds, above 0 where something speaks for invention, and what it is in words."""
    for name, (label, values, weights) in WEIGHT_CURVES.items():
        if (value := getattr(features, name)) is not None:
            weight = float(np.interp(value, values, weights))
            enough_speech = (
                name == "speech_prob" and value * features.duration_s >= _MIN_TOKEN_S * features.n_tokens
            )
            yield min(weight, _MAX_SPARSE_SPEECH_WEIGHT) if enough_speech else weight, f"{label} {value:.2f}"
    if (n_repetitions := count_repetitions(features.text)) > 2:
        yield min(2.0, n_repetitions / 2), f"the same {n_repetitions} times"
    if is_silence_phrase(features.text):
        yield SILENCE_PHRASE_WEIGHT, "what is often written for silence"
    if is_subtitle_credit(features.text):
        yield SUBTITLE_CREDIT_WEIGHT, "a credit for subtitles"


def count_repetitions(text: str) -> int:
    """How often some words stand one right after another in a text, at most; 1 where none are repeated.

    Writing without spaces is taken character by character.
    """
    words: Sequence[str] = normalize_phrase(text).split()
    if len(words) < 2:
        words = "".join(words)
    return max((_longest_run(words, size) // size + 1 for size in range(1, len(words) // 2 + 1)), default=1)


def _longest_run(words: Sequence[str], distance: int) -> int:
    """Longest row of words that each stand `distance` behind their like."""
    longest = run = 0
    for before, word in zip(words, words[distance:], strict=False):
        run = run + 1 if word == before else 0
        longest = max(longest, run)
    return longest


def mean_speech_probability(probabilities: NDArray[np.float32], spans: FrameSpans) -> float:
    """Mean probability of speech in some spans of the recording, 0 where there is nothing.

    Parameters
    ----------
    probabilities : ndarray of shape (chunks,), float32
        From `harken.audio.vad.SpeechDetector`, for the recording from its start.
    spans : tuple of (int, int)
        In mel frames; `Timeline.between` gives those under a segment.
    """
    frames_per_chunk = CHUNK_SAMPLES / HOP_SAMPLES
    span_probabilities = [
        probabilities[int(start / frames_per_chunk) : math.ceil(end / frames_per_chunk)] for start, end in spans
    ]
    concatenated = np.concatenate([np.empty(0, np.float32), *span_probabilities])
    return float(concatenated.mean()) if len(concatenated) else 0.0


def attention_concentration(attention: NDArray[np.float32], n_positions: int) -> float:
    """How much of its attention each token has around one place of the sound, on average.

    A token that was heard is looked for where it was spoken; for one that was not, the decoder looks everywhere.

    Parameters
    ----------
    attention : ndarray of shape (heads, tokens, positions), float32
        Softmax weights of the alignment heads for the text tokens of a segment (`harken.contract.Session.attention`).
    steps : int
        Positions that hold sound.

    Returns
    -------
    float
        0 to 1: the share within 0.2 s of the place that is looked at most. 0 where there are no tokens.
    """
    weights = attention.mean(axis=0)
    if not len(weights):
        return 0.0
    peaks = weights[:, : max(1, n_positions)].argmax(axis=1)
    near_peak = np.abs(np.arange(weights.shape[1]) - peaks[:, None]) <= _PEAK_RADIUS_POSITIONS
    return float((weights * near_peak).sum(axis=1).mean())

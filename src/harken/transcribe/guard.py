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
from harken.transcribe.packing import Spans
from harken.transcribe.phrases import is_courtesy, is_credit, plain
from harken.types import HOP_SAMPLES

PRIOR = -3.0
"""Log-odds of a segment that nothing speaks for or against."""
CURVES = {
    "speech_prob": ("speech probability", (0.0, 0.4, 0.7), (7.0, -0.5, -2.0)),
    "attention": ("attention", (0.1, 0.4), (1.5, -2.0)),
    "avg_logprob": ("average log-probability", (-1.4, 0.2), (3.0, -3.0)),
    "no_speech_prob": ("no-speech probability", (0.0, 1.0), (-1.5, 1.5)),
    "compression_ratio": ("compression ratio", (1.8, 2.8), (0.0, 2.0)),
}
"""What each number weighs: its name in words, some of its values, and their weights; straight lines between."""
COURTESY, CREDIT = 2.5, 6.0

_SPOKEN_S = 0.1  # what a token of speech takes at least
_DOUBT = 1.5  # most that little speech weighs where there is enough of it for the text
_TELLING = 1.0  # from this weight on, an observation is named
_NEAR_STEPS = 10  # 0.2 s: about a token of speech


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
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
    tokens: int
    duration_s: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    speech_prob: float | None = None
    attention: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
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


def assess(facts: Facts) -> Verdict:
    """Weigh what is known about a segment."""
    observed = list(_observations(facts))
    odds = PRIOR + sum(weight for weight, _ in observed)
    telling = sorted((-weight, words) for weight, words in observed if weight >= _TELLING)
    return Verdict(score=1 / (1 + math.exp(-odds)), reason=", ".join(words for _, words in telling) or None)


def _observations(facts: Facts) -> Iterator[tuple[float, str]]:
    """Weights in log-odds, above 0 where something speaks for invention, and what it is in words."""
    for name, (words, values, weights) in CURVES.items():
        if (value := getattr(facts, name)) is not None:
            weight = float(np.interp(value, values, weights))
            drawn_out = name == "speech_prob" and value * facts.duration_s >= _SPOKEN_S * facts.tokens
            yield min(weight, _DOUBT) if drawn_out else weight, f"{words} {value:.2f}"
    if (times := repetitions(facts.text)) > 2:
        yield min(2.0, times / 2), f"the same {times} times"
    if is_courtesy(facts.text):
        yield COURTESY, "what is often written for silence"
    if is_credit(facts.text):
        yield CREDIT, "a credit for subtitles"


def repetitions(text: str) -> int:
    """How often some words stand one right after another in a text, at most; 1 where none are repeated.

    Writing without spaces is taken character by character.
    """
    words: Sequence[str] = plain(text).split()
    if len(words) < 2:
        words = "".join(words)
    return max((_run(words, size) // size + 1 for size in range(1, len(words) // 2 + 1)), default=1)


def _run(words: Sequence[str], distance: int) -> int:
    """Longest row of words that each stand `distance` behind their like."""
    longest = run = 0
    for before, word in zip(words, words[distance:], strict=False):
        run = run + 1 if word == before else 0
        longest = max(longest, run)
    return longest


def speech_under(probabilities: NDArray[np.float32], spans: Spans) -> float:
    """Mean probability of speech in some spans of the recording, 0 where there is nothing.

    Parameters
    ----------
    probabilities : ndarray of shape (chunks,), float32
        From `harken.audio.vad.SpeechDetector`, for the recording from its start.
    spans : tuple of (int, int)
        In mel frames; `Timeline.between` gives those under a segment.
    """
    frames = CHUNK_SAMPLES / HOP_SAMPLES
    heard = [probabilities[int(start / frames) : math.ceil(end / frames)] for start, end in spans]
    together = np.concatenate([np.empty(0, np.float32), *heard])
    return float(together.mean()) if len(together) else 0.0


def concentration(attention: NDArray[np.float32], steps: int) -> float:
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
    peaks = weights[:, : max(1, steps)].argmax(axis=1)
    near = np.abs(np.arange(weights.shape[1]) - peaks[:, None]) <= _NEAR_STEPS
    return float((weights * near).sum(axis=1).mean())

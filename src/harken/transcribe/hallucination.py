"""Hallucination score of a segment: the probability that its text was never spoken, from features of the segment.

Each feature has a weight in log-odds, and the sum of the weights becomes a probability. The weights were chosen by hand
on true and on hallucinated segments, which are far apart (docs/decisions/guard.md).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.audio.vad import CHUNK_SAMPLES
from harken.transcribe.chunking import FrameSpans
from harken.types import HOP_SAMPLES

_SUBTITLE_CREDITS = re.compile(
    r"""amara\ org | dimatorzok | castingwords | zeoranger | btistudios | authorwave | jesper\ buhl | nicolai\ winther
    | johnyx | ghiền\ mì\ gõ | yoyo\ television | ai\ media
    | untertitel(ung)?\ (im\ auftrag )?\ ?(des|der|von)\ (zdf|swr|wdr|ard|br)\b
    | sous\ titrage\ (st|société\ radio\ canada) | sottotitoli\ .*\ qtss | altyazı\ m\ k$
    | субтитры\ (сделал|делал|создавал|создал|подогнал) | редактор\ субтитров | корректор\ а\ | ترجمة\ نانسي\ قنقر
    | 字幕志愿者 | 字幕志願者 | 字幕由.*提供 | 提供的字幕 | mbc\ 뉴스\ | 한글자막\ by | 자막\ 제공
    | ^продолжение\ следует$ | (subtitles|captions|transcription|transcribed|translation|subtitled)\ by\b""",
    re.VERBOSE,
)
"""Credits of subtitle authors, which are not spoken."""

PRIOR_LOG_ODDS = -3.0
"""Log-odds of a hallucination before any feature is known."""
WEIGHT_CURVES = {
    "speech_prob": ("speech probability", (0.0, 0.4, 0.7), (7.0, -0.5, -2.0)),
    "attention_concentration": ("attention", (0.1, 0.4), (1.5, -2.0)),
    "avg_logprob": ("average log-probability", (-1.4, 0.2), (3.0, -3.0)),
    "no_speech_prob": ("no-speech probability", (0.0, 1.0), (-1.5, 1.5)),
    "compression_ratio": ("compression ratio", (1.8, 2.8), (0.0, 2.0)),
}
"""Weight of each numeric feature, by field name: its label, some values, and their weights; linear in between."""
SILENCE_PHRASE_WEIGHT, SUBTITLE_CREDIT_WEIGHT = 2.5, 6.0

_MIN_TOKEN_S = 0.1  # shortest duration of a spoken token
_MAX_SPARSE_SPEECH_WEIGHT = 1.5  # of a low speech probability, where there is enough speech for the tokens
_MIN_REPORTED_WEIGHT = 1.0  # lowest weight of evidence that the reason names
_PEAK_RADIUS_POSITIONS = 10  # 0.2 s: about one spoken token
_FIRST_POSITIONS = 2  # there attention of single and of first words may rest, wherever they are
_LEAST_CONCENTRATION = 0.2  # below it attention is spread out, and does not say where a text is


@dataclass(frozen=True, slots=True, kw_only=True)
class HallucinationFeatures:
    """The features of one segment that its hallucination score is computed from.

    Attributes
    ----------
    text : str
    n_tokens : int
        Number of text tokens.
    duration_s : float
        Duration of its audio in seconds, without silence that was left out between regions.
    avg_logprob, no_speech_prob, compression_ratio : float
        Those of its window (see `harken.results.Attempt`).
    speech_prob : float or None
        Mean speech probability over its audio, 0 to 1, from voice activity detection; None without it.
    attention_concentration : float or None
        Mean share of attention near the most attended position, 0 to 1 (see the function `attention_concentration`);
        None if not known.
    """

    text: str
    n_tokens: int
    duration_s: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    speech_prob: float | None = None
    attention_concentration: float | None = None


def score_hallucination(features: HallucinationFeatures) -> tuple[float, str | None]:
    """Return the probability that the text of a segment was never spoken, and the evidence in words, if there is any.

    The strongest evidence comes first.
    """
    evidence = list(_evidence(features))
    log_odds = PRIOR_LOG_ODDS + sum(weight for weight, _ in evidence)
    reported = sorted((-weight, label) for weight, label in evidence if weight >= _MIN_REPORTED_WEIGHT)
    return 1 / (1 + math.exp(-log_odds)), ", ".join(label for _, label in reported) or None


def _evidence(features: HallucinationFeatures) -> Iterator[tuple[float, str]]:
    """Yield the weight of each piece of evidence in log-odds, above 0 for a hallucination, and a label for it."""
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
    """Return the most consecutive occurrences of any sequence of words in a text; 1 without repetition.

    A text without spaces is taken character by character.
    """
    words: Sequence[str] = normalize_phrase(text).split()
    if len(words) < 2:
        words = "".join(words)
    return max((_longest_run(words, size) // size + 1 for size in range(1, len(words) // 2 + 1)), default=1)


def _longest_run(words: Sequence[str], distance: int) -> int:
    """Return the length of the longest run of words that each equal the word `distance` before them."""
    longest = run = 0
    for earlier, word in zip(words, words[distance:], strict=False):
        run = run + 1 if word == earlier else 0
        longest = max(longest, run)
    return longest


def is_silence_phrase(text: str) -> bool:
    """Return whether the whole text is a phrase that Whisper often writes for silence."""
    return normalize_phrase(text) in silence_phrases()


def is_subtitle_credit(text: str) -> bool:
    """Return whether a text contains a credit of subtitle authors."""
    return _SUBTITLE_CREDITS.search(normalize_phrase(text)) is not None


def normalize_phrase(text: str) -> str:
    """Return the letters, marks and digits of a text in lower case, words separated by one space."""
    letters = (
        char if unicodedata.category(char)[0] in "LMN" else " " for char in text.casefold().replace("'", "")
    )
    return " ".join("".join(letters).split())


@cache
def silence_phrases() -> frozenset[str]:
    """Read the phrases that Whisper often writes for silence, a line for each language; they may also be spoken."""
    lines = (Path(__file__).parent / "data" / "silence_phrases.txt").read_text(encoding="utf-8").splitlines()
    phrases = (phrase for line in lines for phrase in line.partition(": ")[2].split(" | "))
    return frozenset(map(normalize_phrase, phrases))


def mean_speech_probability(probabilities: Sequence[float], spans: FrameSpans) -> float:
    """Return the mean probability of speech in some spans of the recording, 0 without any.

    The probabilities are those of all chunks of a `harken.audio.vad.SpeechDetector`, the spans in mel frames.
    """
    frames_per_chunk = CHUNK_SAMPLES / HOP_SAMPLES
    in_spans: list[float] = []
    for start, end in spans:
        in_spans.extend(probabilities[int(start / frames_per_chunk) : math.ceil(end / frames_per_chunk)])
    return float(np.array(in_spans, np.float32).mean()) if in_spans else 0.0


def attended_stretch(attention: NDArray[np.float32], n_positions: int) -> tuple[int, int] | None:
    """Return the positions from the first to behind the last that the tokens of a segment attend to most.

    A little before and behind them belongs to the stretch: a token attends to the middle of what it stands for. None if
    attention does not say where the text is. The arguments are those of `attention_concentration`.
    """
    peaks = attention.mean(axis=0)[:, : max(1, n_positions)].argmax(axis=1)
    peaks = peaks[peaks >= _FIRST_POSITIONS]
    if not len(peaks) or attention_concentration(attention, n_positions) < _LEAST_CONCENTRATION:
        return None
    return max(0, int(peaks.min()) - _PEAK_RADIUS_POSITIONS), int(peaks.max()) + _PEAK_RADIUS_POSITIONS + 1


def attention_concentration(attention: NDArray[np.float32], n_positions: int) -> float:
    """Return the mean share of attention that the tokens of a segment have near their most attended position.

    For a token that was spoken, the decoder attends to the position where it was; otherwise it attends everywhere. The
    share is that within 0.2 s of the most attended position, 0 to 1; it is 0 where there are no tokens.

    Parameters
    ----------
    attention : ndarray of shape (heads, tokens, positions), float32
        Softmax weights of the alignment heads for the text tokens of a segment (`harken.contract.Session.attention`).
    n_positions : int
        Number of positions that hold audio.
    """
    weights = attention.mean(axis=0)
    if not len(weights):
        return 0.0
    peaks = weights[:, : max(1, n_positions)].argmax(axis=1)
    near_peak = np.abs(np.arange(weights.shape[1]) - peaks[:, None]) <= _PEAK_RADIUS_POSITIONS
    return float((weights * near_peak).sum(axis=1).mean())

"""How likely it is that a segment was invented, from what is known about it; nothing here hears or decodes.

Each observation weighs for or against, in log-odds, and the sum becomes a probability. The weights were chosen by hand
on segments that were true and segments that were not; the two are far apart (docs/decisions/guard.md).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from harken.audio.vad import CHUNK_SAMPLES
from harken.transcribe.chunking import FrameSpans
from harken.types import HOP_SAMPLES

SILENCE_PHRASES = {
    "en": (
        "Thank you", "Thank you very much", "Thank you so much", "Thank you for watching",
        "Thanks for watching", "Thank you so much for watching", "Thanks for listening",
        "Thank you for listening", "Please subscribe", "Please subscribe to my channel",
        "Like and subscribe", "See you next time", "See you in the next video",
        "I'll see you in the next video", "We'll be right back", "You", "Bye", "Bye bye", "Goodbye",
        "The end", "Silence", "Music", "Applause", "Laughter", "Foreign",
    ),
    "de": (
        "Vielen Dank", "Vielen Dank fürs Zuschauen", "Danke fürs Zuschauen", "Bis zum nächsten Mal",
        "Tschüss", "Danke",
    ),
    "fr": (
        "Merci", "Merci d'avoir regardé", "Merci d'avoir regardé cette vidéo",
        "Merci d'avoir regardé la vidéo", "Abonnez-vous", "À bientôt", "Au revoir", "Musique",
    ),
    "es": (
        "Gracias", "Muchas gracias", "Gracias por ver el video", "Gracias por ver", "Suscríbete",
        "Suscríbete al canal",
    ),
    "it": ("Grazie", "Grazie a tutti", "Grazie per aver guardato il video", "Grazie per la visione"),
    "pt": ("Obrigado", "Obrigada", "Obrigado por assistir", "Inscreva-se no canal", "Tchau"),
    "nl": ("Bedankt voor het kijken", "Dank u wel", "Dank je wel", "Tot de volgende keer"),
    "sv": ("Tack", "Tack för att du tittade", "Tack för att ni tittade"),
    "no": ("Takk for at du så på",),
    "da": ("Tak", "Tak for at I så med"),
    "fi": ("Kiitos", "Kiitos katsomisesta"),
    "pl": ("Dziękuję", "Dziękuję za uwagę", "Dzięki za obejrzenie", "Dziękuję za obejrzenie"),
    "cs": ("Děkuji", "Děkujeme za pozornost"),
    "hu": ("Köszönöm", "Köszönöm szépen", "Köszönöm, hogy megnézted"),
    "ro": ("Mulțumesc", "Vă mulțumim pentru vizionare"),
    "tr": ("Teşekkürler", "İzlediğiniz için teşekkür ederim", "Abone olmayı unutmayın"),
    "el": ("Ευχαριστώ", "Σας ευχαριστώ"),
    "ru": (
        "Спасибо", "Спасибо за просмотр", "Спасибо за внимание", "До новых встреч",
        "Подписывайтесь на канал",
    ),
    "uk": ("Дякую", "Дякую за перегляд", "Дякую за увагу"),
    "ar": ("شكرا", "شكرا للمشاهدة", "شكرا على المشاهدة", "اشتركوا في القناة"),
    "ja": (
        "ご視聴ありがとうございました", "ご視聴いただきありがとうございます",
        "ご視聴いただきありがとうございました", "最後までご視聴いただきありがとうございます",
        "ありがとうございました", "ありがとうございます", "おやすみなさい", "チャンネル登録お願いします",
        "チャンネル登録よろしくお願いします", "次の動画でお会いしましょう", "またね",
    ),
    "zh": (
        "谢谢", "谢谢大家", "谢谢观看", "感谢观看", "感谢收看", "谢谢收看", "多谢您收看", "謝謝",
        "謝謝大家", "謝謝觀看", "多謝您收看", "請不吝點贊訂閱轉發打賞支持明鏡與點點欄目",
        "请不吝点赞订阅转发打赏支持明镜与点点栏目", "下期再见", "我们下期再见",
    ),
    "ko": (
        "감사합니다", "시청해주셔서 감사합니다", "시청해 주셔서 감사합니다", "구독과 좋아요 부탁드립니다",
        "다음 영상에서 만나요",
    ),
    "vi": ("Cảm ơn các bạn đã theo dõi", "Hẹn gặp lại các bạn trong những video tiếp theo"),
    "id": ("Terima kasih", "Terima kasih telah menonton"),
}  # fmt: skip
"""By language. They may have been said."""

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
"""Names of those who made subtitles: nobody says these."""


def is_silence_phrase(text: str) -> bool:
    """Whether a text is, as a whole, one that Whisper likes to write for silence."""
    return normalize_phrase(text) in _silence_phrases()


def is_subtitle_credit(text: str) -> bool:
    """Whether a text names those who made subtitles."""
    return _SUBTITLE_CREDITS.search(normalize_phrase(text)) is not None


def normalize_phrase(text: str) -> str:
    """Letters, marks and digits in small letters, words separated by one space."""
    letters = (
        char if unicodedata.category(char)[0] in "LMN" else " " for char in text.casefold().replace("'", "")
    )
    return " ".join("".join(letters).split())


@cache
def _silence_phrases() -> frozenset[str]:
    return frozenset(normalize_phrase(phrase) for phrases in SILENCE_PHRASES.values() for phrase in phrases)


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

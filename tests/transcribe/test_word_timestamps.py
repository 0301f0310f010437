"""The words of decoded tokens: their times, probabilities and punctuation."""

from __future__ import annotations

import numpy as np
import pytest

from harken.text import Tokenizer
from harken.transcribe.segments import TokenSegment
from harken.transcribe.word_timestamps import Alignment, words_by_segment
from tiny_models import TOKENIZER

ENGLISH = Tokenizer.builtin(51864)


def token_segment(text: str, *, start: int | None = None) -> TokenSegment:
    timestamps = () if start is None else (TOKENIZER.timestamp_begin + start,)
    return TokenSegment(start=start or 0, end=100, tokens=(*timestamps, *TOKENIZER.encode(text), *timestamps))


def words_of(
    *texts: str, bounds: list[int] | None = None, language: str = "en", **punctuations: str
) -> list[list[tuple[str, float, float]]]:
    """Return the words of segments in which every byte is a token, by default one position long."""
    n_tokens = sum(len(text.encode()) for text in texts)
    alignment = Alignment(
        tokens=tuple(token for text in texts for token in TOKENIZER.encode(text)),
        bounds=np.array(bounds if bounds is not None else range(n_tokens + 1)),
        probabilities=np.full(n_tokens, 0.5, np.float32),
    )
    segments = [token_segment(text, start=3) for text in texts]
    words, _ = words_by_segment(segments, alignment, TOKENIZER, language=language, **punctuations)
    assert all(word.probability == pytest.approx(0.5) for segment in words for word in segment)
    return [[(word.text, word.start, word.end) for word in segment] for segment in words]


def texts_of(*texts: str, language: str = "en", **punctuations: str) -> list[str]:
    (words,) = words_of(*texts, language=language, **punctuations)
    return [text for text, *_ in words]


def test_word_probability_is_the_mean_of_its_tokens() -> None:
    alignment = Alignment(
        tokens=tuple(TOKENIZER.encode(" a bc")),
        bounds=np.arange(6),
        probabilities=np.array([0.2, 0.4, 0.9, 0.6, 0.3], np.float32),
    )
    ((first, second),), _ = words_by_segment([token_segment(" a bc")], alignment, TOKENIZER, language="en")
    assert first.probability == pytest.approx(0.3)
    assert second.probability == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" Yes, we can.", [" Yes,", " we", " can."]),
        (" (now) go", [" (now)", " go"]),
        (' he said "go" then', [" he", " said", ' "go"', " then"]),
        (" ¿qué?", [" ¿qué?"]),
        (" what?!", [" what?!"]),
        (" - no", [" - no"]),
        (" a -", [" a", " -"]),
        (" «so»", [" «so»"]),
        (" it's", [" it's"]),
        (" a well-known fact", [" a", " well", "-known", " fact"]),
    ],
)
def test_punctuation_is_merged_into_its_word(text: str, words: list[str]) -> None:
    tokens = tuple(ENGLISH.encode(text))
    alignment = Alignment(
        tokens=tokens, bounds=np.arange(len(tokens) + 1), probabilities=np.ones(len(tokens), np.float32)
    )
    (found,), _ = words_by_segment(
        [TokenSegment(start=0, end=9, tokens=tokens)], alignment, ENGLISH, language="en"
    )
    assert [word.text for word in found] == words


def test_punctuation_to_merge_is_an_option() -> None:
    assert texts_of(" a, b", append_punctuations="") == [" a", ",", " b"]
    assert texts_of(" - b", prepend_punctuations="") == [" -", " b"]


def test_punctuation_is_not_merged_across_segments() -> None:
    words = words_of(" a -", " b", bounds=[*range(7)])
    assert [[text for text, *_ in segment] for segment in words] == [[" a", " -"], [" b"]]


@pytest.mark.parametrize("language", ["zh", "ja", "yue", "th"])
def test_words_of_languages_without_spaces_are_characters(language: str) -> None:
    assert texts_of("你好，世界。", language=language) == ["你", "好，", "世", "界。"]


def test_long_sentence_end_mark_is_shortened() -> None:
    # The median duration is 2 positions; the full stop is stretched over a pause of 50.
    bounds = [0, 1, 2, 3, 4, 5, 6, 56, 57, 58]
    assert words_of(" a b c. d", bounds=bounds, append_punctuations="")[0][3:] == [(".", 6, 10), (" d", 56, 58)]


def test_long_word_after_a_sentence_end_is_shortened() -> None:
    bounds = [0, 1, 2, 3, 4, 5, 6, 7, 57, 58]
    assert words_of(" a b c. d", bounds=bounds, append_punctuations="")[0][3:] == [(".", 6, 7), (" d", 54, 58)]


def test_median_duration_of_words() -> None:
    def median_duration(bounds: list[int]) -> float:
        text = " a b c"
        alignment = Alignment(
            tokens=tuple(TOKENIZER.encode(text)),
            bounds=np.array(bounds),
            probabilities=np.ones(6, np.float32),
        )
        return words_by_segment([token_segment(text)], alignment, TOKENIZER, language="en")[1]

    assert median_duration([0, 1, 4, 5, 6, 10, 20]) == 4  # of 4, 2 and 14
    assert median_duration([0, 0, 0, 1, 4, 5, 6]) == 3  # words without duration do not count
    assert median_duration([0, 50, 100, 150, 200, 250, 300]) == 35  # at most 0.7 s
    assert median_duration([5] * 7) == 0

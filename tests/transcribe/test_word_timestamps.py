"""The words of decoded tokens: their alignment, times, probabilities and punctuation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.contract import Floats
from harken.text import Tokenizer
from harken.transcribe.segments import TokenSegment
from harken.transcribe.word_timestamps import Alignment, token_starts, words_by_segment
from tiny_models import TOKENIZER

ENGLISH = Tokenizer.builtin(51864)
MULTILINGUAL = Tokenizer.builtin(51865)
TEXT_PARTS = st.sampled_from(
    [" a", " well", "-known", " fact", ",", ".", '"', " (", ")", " «", "你", "好", "。", " ", "é"]
)
TEXTS = st.lists(TEXT_PARTS, max_size=12).map("".join)


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


def test_words_of_languages_without_spaces_are_characters() -> None:
    for language in ("zh", "ja", "yue", "th"):
        assert texts_of("你好，世界。", language=language) == ["你", "好，", "世", "界。"]


def test_long_sentence_end_mark_or_word_after_it_is_shortened() -> None:
    """The median duration is 2 positions; one word is stretched over a pause of 50."""
    mark, after = (
        words_of(" a b c. d", bounds=bounds, append_punctuations="")[0][3:]
        for bounds in ([0, 1, 2, 3, 4, 5, 6, 56, 57, 58], [0, 1, 2, 3, 4, 5, 6, 7, 57, 58])
    )
    assert mark == [(".", 6, 10), (" d", 56, 58)]
    assert after == [(".", 6, 7), (" d", 54, 58)]


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


def reference_token_starts(attention: Floats) -> list[int]:
    """Return the token starts by the full table (openai/whisper, timing.py, dtw_cpu and backtrace)."""
    n_tokens, n_positions = attention.shape
    total = np.full((n_tokens + 1, n_positions + 1), np.inf)
    total[0, 0] = 0
    for i in range(n_tokens):
        for j in range(n_positions):
            total[i + 1, j + 1] = min(total[i, j], total[i, j + 1], total[i + 1, j]) - attention[i, j]
    path = [(n_tokens, n_positions)]
    while path[-1] != (1, 1):
        i, j = path[-1]
        path.append(min([(i - 1, j - 1), (i - 1, j), (i, j - 1)], key=lambda at: total[at]))
    return [min(j for i, j in path if i == token + 1) - 1 for token in range(n_tokens)]


@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_path_is_that_of_the_full_table(n_tokens: int, n_positions: int, seed: int) -> None:
    attention = np.random.default_rng(seed).standard_normal((n_tokens, n_positions)).astype(np.float32)
    assert token_starts(attention).tolist() == reference_token_starts(attention)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_tokens_begin_where_their_attention_begins(lengths: list[int]) -> None:
    attention = np.repeat(2 * np.eye(len(lengths), dtype=np.float32) - 1, lengths, axis=1)
    assert token_starts(attention).tolist() == [0, *np.cumsum(lengths)[:-1]]


@given(
    st.lists(TEXTS, max_size=4), st.sampled_from(["en", "fr", "zh", "ja"]), st.randoms(use_true_random=False)
)
def test_words_of_a_segment_join_to_its_text_in_order(texts, language, random) -> None:
    segments = [TokenSegment(start=0, end=1, tokens=tuple(MULTILINGUAL.encode(text))) for text in texts]
    tokens = tuple(token for segment in segments for token in segment.tokens)
    alignment = Alignment(
        tokens=tokens,
        bounds=np.sort([random.randrange(1500) for _ in range(len(tokens) + 1)]),
        probabilities=np.array([random.random() for _ in tokens], np.float32),
    )
    words_of_segments, median_duration = words_by_segment(segments, alignment, MULTILINGUAL, language=language)
    assert ["".join(word.text for word in words) for words in words_of_segments] == texts
    assert 0 <= median_duration <= 35
    words = [word for segment_words in words_of_segments for word in segment_words]
    assert all(0 <= word.start <= word.end for word in words)
    assert all(word.end <= following.start for word, following in pairwise(words))
    assert all(0 <= word.probability <= 1 for word in words)

"""Words out of tokens: where they begin, what belongs to them."""

from __future__ import annotations

import numpy as np
import pytest

from harken.text import Tokenizer
from harken.transcribe.segments import TokenSegment
from harken.transcribe.word_timestamps import Alignment, WordTiming, words_by_segment
from tiny_models import TOKENIZER

ENGLISH = Tokenizer.builtin(51864)


def cut_of(text: str, *, begin: int | None = None) -> TokenSegment:
    stamps = () if begin is None else (TOKENIZER.timestamp_begin + begin,)
    return TokenSegment(start=begin or 0, end=100, tokens=(*stamps, *TOKENIZER.encode(text), *stamps))


def words_of(
    *texts: str, bounds: list[int] | None = None, language: str = "en", **marks: str
) -> list[list[tuple[str, float, float]]]:
    """Words of segments whose every byte is a token; by default each byte takes one step."""
    size = sum(len(text.encode()) for text in texts)
    alignment = Alignment(
        tokens=tuple(token for text in texts for token in TOKENIZER.encode(text)),
        bounds=np.array(bounds if bounds is not None else range(size + 1)),
        probabilities=np.full(size, 0.5, np.float32),
    )
    cuts = [cut_of(text, begin=3) for text in texts]
    words, _ = words_by_segment(cuts, alignment, TOKENIZER, language=language, **marks)
    assert all(word.probability == pytest.approx(0.5) for its in words for word in its)
    return [[(word.text, word.start, word.end) for word in its] for its in words]


def texts_of(*texts: str, language: str = "en", **marks: str) -> list[str]:
    (words,) = words_of(*texts, language=language, **marks)
    return [text for text, *_ in words]


def test_words_begin_and_end_with_their_tokens() -> None:
    assert words_of(" ab c") == [[(" ab", 0, 3), (" c", 3, 5)]]
    assert words_of(" ab c", bounds=[4, 6, 6, 9, 10, 12]) == [[(" ab", 4, 9), (" c", 9, 12)]]


def test_one_list_a_segment() -> None:
    assert words_of(" ab", " c", bounds=[0, 1, 2, 5, 7, 9]) == [[(" ab", 0, 5)], [(" c", 5, 9)]]


def test_a_segment_without_text_has_no_words() -> None:
    alignment = Alignment(tokens=(), bounds=np.zeros(1, np.int64), probabilities=np.zeros(0, np.float32))
    empty = TokenSegment(start=0, end=4, tokens=(TOKENIZER.timestamp_begin, TOKENIZER.timestamp_begin + 4))
    assert words_by_segment([empty], alignment, TOKENIZER, language="en") == ([[]], 0.0)
    assert words_by_segment([], alignment, TOKENIZER, language="en") == ([], 0.0)


def test_probability_is_the_mean_of_the_tokens() -> None:
    alignment = Alignment(
        tokens=tuple(TOKENIZER.encode(" a bc")),
        bounds=np.arange(6),
        probabilities=np.array([0.2, 0.4, 0.9, 0.6, 0.3], np.float32),
    )
    ((first, second),), _ = words_by_segment([cut_of(" a bc")], alignment, TOKENIZER, language="en")
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
def test_punctuation_goes_with_its_word(text: str, words: list[str]) -> None:
    tokens = tuple(ENGLISH.encode(text))
    alignment = Alignment(
        tokens=tokens, bounds=np.arange(len(tokens) + 1), probabilities=np.ones(len(tokens), np.float32)
    )
    (found,), _ = words_by_segment(
        [TokenSegment(start=0, end=9, tokens=tokens)], alignment, ENGLISH, language="en"
    )
    assert [word.text for word in found] == words


def test_which_marks_are_merged_can_be_chosen() -> None:
    assert texts_of(" a, b", append_punctuations="") == [" a", ",", " b"]
    assert texts_of(" - b", prepend_punctuations="") == [" -", " b"]


def test_a_mark_adds_no_time_to_its_word() -> None:
    assert words_of(" a, b", bounds=[0, 1, 2, 3, 4, 5]) == [[(" a,", 0, 2), (" b", 3, 5)]]


def test_marks_stay_in_their_segment() -> None:
    words = words_of(" a -", " b", bounds=[*range(7)])
    assert [[text for text, *_ in its] for its in words] == [[" a", " -"], [" b"]]


@pytest.mark.parametrize("language", ["zh", "ja", "yue", "th"])
def test_languages_without_spaces_are_cut_between_characters(language: str) -> None:
    assert texts_of("你好，世界。", language=language) == ["你", "好，", "世", "界。"]


def test_a_long_mark_at_the_end_of_a_sentence_is_shortened() -> None:
    # Usual are 2 steps; the full stop lasts over a pause of 50.
    bounds = [0, 1, 2, 3, 4, 5, 6, 56, 57, 58]
    assert words_of(" a b c. d", bounds=bounds, append_punctuations="")[0][3:] == [(".", 6, 10), (" d", 56, 58)]


def test_a_long_word_behind_a_sentence_is_shortened() -> None:
    bounds = [0, 1, 2, 3, 4, 5, 6, 7, 57, 58]
    assert words_of(" a b c. d", bounds=bounds, append_punctuations="")[0][3:] == [(".", 6, 7), (" d", 54, 58)]


def test_the_usual_duration() -> None:
    def usual(bounds: list[int]) -> float:
        text = " a b c"
        alignment = Alignment(
            tokens=tuple(TOKENIZER.encode(text)),
            bounds=np.array(bounds),
            probabilities=np.ones(6, np.float32),
        )
        return words_by_segment([cut_of(text)], alignment, TOKENIZER, language="en")[1]

    assert usual([0, 1, 4, 5, 6, 10, 20]) == 4  # of 4, 2 and 14
    assert usual([0, 0, 0, 1, 4, 5, 6]) == 3  # what has no duration does not count
    assert usual([0, 50, 100, 150, 200, 250, 300]) == 35  # at most 0.7 s
    assert usual([5] * 7) == 0


def test_a_word_knows_its_duration() -> None:
    assert WordTiming(text=" a", start=2, end=4.5, probability=1).duration == 2.5

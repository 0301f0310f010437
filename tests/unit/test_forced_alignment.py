"""Pieces of a text and of the recording that says it."""

from __future__ import annotations

import pytest

from harken.errors import AudioError
from harken.results import Word
from harken.transcribe.forced_alignment import TextChunk, split_text


def spoken(*words: tuple[str, float, float]) -> list[Word]:
    return [Word(text=text, start_s=start_s, end_s=end_s, probability=1.0) for text, start_s, end_s in words]


def cut(text: str, heard: list[Word], duration_s: float, language: str = "en") -> list[tuple[str, float]]:
    """Text and end of each piece of at most 10 s."""
    made = list(split_text(text, heard, duration_s, 10.0, language=language))
    assert "".join(piece.text for piece in made) == text
    assert [piece.start_s for piece in made] == [0.0, *(piece.end_s for piece in made[:-1])]
    assert all(piece.end_s - piece.start_s <= 10.0 for piece in made)
    return [(piece.text, piece.end_s) for piece in made]


def test_what_fits_is_one_piece() -> None:
    assert list(split_text("a b", [], 10.0, 10.0, language="en")) == [
        TextChunk(text="a b", start_s=0.0, end_s=10.0)
    ]


def test_a_piece_ends_in_the_longest_pause_of_its_second_half() -> None:
    heard = spoken((" a", 0, 1), (" b", 4, 6), (" c", 7, 8), (" d", 8.2, 11))
    assert cut("A, b c! D.", heard, 12.0) == [("A, b ", 6.5), ("c! D.", 12.0)]


def test_it_ends_in_its_first_half_where_no_later_word_is_sure() -> None:
    heard = spoken((" one", 0, 1), (" two", 2, 3), (" tree", 7, 8), (" four", 8, 11))
    assert cut("one two three four", heard, 11.0) == [("one ", 1.5), ("two three four", 11.0)]


def test_words_that_were_heard_wrongly_are_passed_over() -> None:
    heard = spoken(
        (" call", 0, 1), (" me", 1, 2), (" fish", 2, 7), (" some", 8, 8.5), (" years", 8.6, 9), (" ago", 9, 12)
    )
    assert cut("Call me Ishmael. Some years ago", heard, 13.0) == [
        ("Call me Ishmael. Some ", 8.55),
        ("years ago", 13.0),
    ]


def test_where_words_are_not_written_apart_a_piece_ends_between_those_that_were_heard() -> None:
    heard = spoken(("你好", 0, 2), ("世界", 6, 8), ("再见", 8, 12))
    assert cut("你好世界再见", heard, 13.0, "zh") == [("你好世界", 8.0), ("再见", 13.0)]


@pytest.mark.parametrize("heard", [[], spoken((" x", 0, 1), (" y", 2, 3)), spoken((" a", 1, 2), (" x", 7, 9))])
def test_a_text_that_is_not_said(heard: list[Word]) -> None:
    with pytest.raises(
        AudioError, match=r"does not say what stands in the text, from 0\.00 s on; allowed .* 10 s"
    ):
        cut("a b", heard, 20.0)

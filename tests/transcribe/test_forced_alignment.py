"""Chunks of a known text and of its recording."""

from __future__ import annotations

import pytest

from harken.errors import AudioError
from harken.results import Word
from harken.transcribe.forced_alignment import TextChunk, split_text


def recognized(*words: tuple[str, float, float]) -> list[Word]:
    return [Word(text=text, start_s=start_s, end_s=end_s, probability=1.0) for text, start_s, end_s in words]


def split(text: str, words: list[Word], duration_s: float, language: str = "en") -> list[tuple[str, float]]:
    """Return the text and the end of each chunk of at most 10 s."""
    chunks = list(split_text(text, words, duration_s, 10.0, language=language))
    assert "".join(chunk.text for chunk in chunks) == text
    assert [chunk.start_s for chunk in chunks] == [0.0, *(chunk.end_s for chunk in chunks[:-1])]
    assert all(chunk.end_s - chunk.start_s <= 10.0 for chunk in chunks)
    return [(chunk.text, chunk.end_s) for chunk in chunks]


def test_text_of_a_short_recording_is_one_chunk() -> None:
    assert list(split_text("a b", [], 10.0, 10.0, language="en")) == [
        TextChunk(text="a b", start_s=0.0, end_s=10.0)
    ]


def test_chunk_ends_in_the_longest_pause_of_its_second_half() -> None:
    words = recognized((" a", 0, 1), (" b", 4, 6), (" c", 7, 8), (" d", 8.2, 11))
    assert split("A, b c! D.", words, 12.0) == [("A, b ", 6.5), ("c! D.", 12.0)]


def test_chunk_ends_in_its_first_half_when_no_later_words_match() -> None:
    words = recognized((" one", 0, 1), (" two", 2, 3), (" tree", 7, 8), (" four", 8, 11))
    assert split("one two three four", words, 11.0) == [("one ", 1.5), ("two three four", 11.0)]


def test_wrongly_recognized_words_are_skipped() -> None:
    words = recognized(
        (" call", 0, 1), (" me", 1, 2), (" fish", 2, 7), (" some", 8, 8.5), (" years", 8.6, 9), (" ago", 9, 12)
    )
    assert split("Call me Ishmael. Some years ago", words, 13.0) == [
        ("Call me Ishmael. Some ", 8.55),
        ("years ago", 13.0),
    ]


def test_chunk_ends_between_recognized_words_in_a_language_without_spaces() -> None:
    words = recognized(("你好", 0, 2), ("世界", 6, 8), ("再见", 8, 12))
    assert split("你好世界再见", words, 13.0, "zh") == [("你好世界", 8.0), ("再见", 13.0)]


@pytest.mark.parametrize(
    "words", [[], recognized((" x", 0, 1), (" y", 2, 3)), recognized((" a", 1, 2), (" x", 7, 9))]
)
def test_text_that_does_not_match_the_recording_is_refused(words: list[Word]) -> None:
    with pytest.raises(
        AudioError, match=r"the recording does not match the text from 0\.00 s on; allowed .* 10 s"
    ):
        split("a b", words, 20.0)

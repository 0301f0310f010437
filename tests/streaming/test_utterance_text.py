"""Text, sentences and words of an utterance in progress, and the rejection of hallucinations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harken.decoding import PartialHypothesis
from harken.streaming.utterance import ActiveUtterance, TimedToken
from harken.streaming.utterance_text import (
    display_text,
    ends_sentence,
    is_hallucination,
    utterance_segments,
    utterance_words,
)
from tiny_models import TOKENIZER

START_FRAME = 1000
STEP = 10
"""Positions from the start of one token to that of the next."""


def byte_tokens(data: bytes, first: int = 0) -> list[TimedToken]:
    """Return timed tokens, a byte each, that begin one after another."""
    return [
        TimedToken(
            token=byte,
            logprob=-0.1 * (i % 3),
            start_position=STEP * (first + i),
            end_position=STEP * (first + i + 1),
        )
        for i, byte in enumerate(data)
    ]


def utterance(committed: bytes = b"", tentative: bytes = b"", language: str | None = "en") -> ActiveUtterance:
    created = ActiveUtterance(
        encoder=None,
        n_mels=8,
        start_frame=START_FRAME,
        committed=byte_tokens(committed),
        tentative=tuple(tentative),
        language=language,
    )
    created.encoded_frames, created.no_speech_prob = 400, 0.25
    return created


# --- text ---------------------------------------------------------------------------------------------------

EURO = "€".encode()


@pytest.mark.parametrize(
    ("committed", "tentative", "expected"),
    [
        (b" To", b" be", ("To", " be")),
        (b"", b" To be", ("", "To be")),
        # Incomplete characters are not shown, not even committed ones, so that shown text never changes.
        (b" a", b" " + EURO[:2], ("a", " ")),
        (b" a" + EURO[:1], EURO[1:2], ("a", "")),
        (b" a" + EURO[:2], EURO[2:] + b" b", ("a", "€ b")),
        # Bytes that can never become a character are shown.
        (b" a\xe2", b" b", ("a", "� b")),
    ],
)
def test_displayed_text_has_no_incomplete_characters(
    committed: bytes, tentative: bytes, expected: tuple[str, str]
):
    assert display_text(utterance(committed, tentative), TOKENIZER) == expected


@given(text=st.text("ab €é😀.", max_size=12), cuts=st.lists(st.integers(0, 48), min_size=4, max_size=4))
@example(text="€", cuts=[1, 2, 2, 3])
def test_committed_text_only_grows_and_never_ends_inside_a_character(text: str, cuts: list[int]):
    """For any split of a text into committed, tentative and future tokens."""
    data = text.encode()
    steps = sorted(min(cut, len(data)) for cut in cuts)
    shown = [display_text(utterance(data[:a], data[a:b]), TOKENIZER) for a, b in pairwise(steps)]
    for (committed, tentative), (a, b) in zip(shown, pairwise(steps), strict=True):
        assert text.lstrip().startswith(committed + tentative)
        assert not committed or committed.encode() in data[:a]
        assert len(data[:b].decode(errors="ignore").lstrip()) == len(committed + tentative)
    for (before, _), (after, _) in pairwise(shown):
        assert after.startswith(before)


@pytest.mark.parametrize(
    ("committed", "tentative", "ends"),
    [
        (b"", b"", False),
        (b" To be.", b"", True),
        (b" To be", b".", True),
        (b" To be.", b" Or", False),
        (b" To be", b"! ", True),
        (b" To be", b",", False),
        ("好".encode(), "。".encode(), True),
        ("好".encode(), "。".encode()[:2], False),
        (b" No. 5", b"", False),
    ],
)
def test_sentence_end_is_found_in_the_last_characters(committed: bytes, tentative: bytes, ends: bool):
    assert ends_sentence(utterance(committed, tentative), TOKENIZER) is ends


# --- words and sentences ------------------------------------------------------------------------------------


def test_words_have_times_in_the_stream():
    """One token every 0.2 s; the utterance begins after 10 s."""
    one, other = utterance_words(byte_tokens(b" To be,"), utterance(), TOKENIZER)
    assert (one.text, one.start_s, one.end_s) == (" To", 10.0, pytest.approx(10.6))
    assert (other.text, other.start_s, other.end_s) == (" be,", pytest.approx(10.6), pytest.approx(11.4))
    assert one.probability == pytest.approx(np.mean(np.exp([0.0, -0.1, -0.2])))
    assert other.probability == pytest.approx(np.mean(np.exp([0.0, -0.1, -0.2, 0.0])))


def test_punctuation_belongs_to_the_word_before_it():
    found = utterance_words(byte_tokens(b" He said: go!) Then... so"), utterance(), TOKENIZER)
    assert [word.text for word in found] == [" He", " said:", " go!)", " Then...", " so"]


def sentences_of(data: bytes, *, language: str = "en") -> list[tuple[str, float, float]]:
    """Return the text and times of each segment."""
    found = utterance_segments(byte_tokens(data), utterance(language=language), TOKENIZER, with_words=False)
    return [(segment.text, round(segment.start_s, 3), round(segment.end_s, 3)) for segment in found]


def test_each_sentence_is_a_segment():
    assert sentences_of(b" To be. Or not? To") == [
        (" To be.", 10.0, 11.4),
        (" Or not?", 11.4, 13.0),
        (" To", 13.0, 13.6),
    ]
    assert sentences_of(b" To be.") == [(" To be.", 10.0, 11.4)]
    assert sentences_of(b"") == []


@given(text=st.text("ab .?€,\"'", max_size=25))
def test_segments_and_words_contain_all_text_in_order(text: str):
    found = utterance_segments(byte_tokens(text.encode()), utterance(), TOKENIZER, with_words=True)
    assert "".join(segment.text for segment in found) == text
    assert "".join(word.text for segment in found for word in segment.words) == text
    assert all(one.end_s <= other.start_s for one, other in pairwise(found))
    assert all(one.end_s <= other.start_s for segment in found for one, other in pairwise(segment.words))


@given(data=st.binary(max_size=20))
def test_invalid_utf8_loses_no_token(data: bytes):
    found = utterance_segments(byte_tokens(data), utterance(), TOKENIZER, with_words=True)
    assert tuple(token for segment in found for token in segment.tokens) == tuple(data)


# --- hallucinations -----------------------------------------------------------------------------------------


def hypothesis(
    text: str = " To be or not to be",
    logprob: float = -0.1,
    no_speech_prob: float = 0.05,
    diffuse: bool = False,
) -> PartialHypothesis:
    n = len(text)
    attention = np.full((2, n + 1, 300), 1 / 300, np.float32)
    if not diffuse:
        attention[:] = np.arange(300) == 5 * np.arange(n + 1)[:, None]
    return PartialHypothesis(
        tokens=tuple(text.encode()),
        logprobs=(logprob,) * n,
        attended_positions=5 * np.arange(n + 1),
        attention=attention,
        reached_eot=True,
        no_speech_prob=no_speech_prob,
    )


SPEECH, HALF, NOISE = [0.9] * 100, [0.45] * 100, [0.02] * 100


@pytest.mark.parametrize(
    ("candidate", "speech_probs", "rejected"),
    [
        (hypothesis(), SPEECH, False),
        (hypothesis(diffuse=True, logprob=-1.3, no_speech_prob=0.9), NOISE, True),
        (hypothesis(" Thank you.", diffuse=True), NOISE, True),
        (hypothesis(" Thank you."), SPEECH, False),
        (hypothesis(" a a a a a a a a a a a a a", logprob=-1.2, diffuse=True), HALF, True),
        (hypothesis(" a b c d e f g h i j k l m", logprob=-1.0, diffuse=True), HALF, False),
        (hypothesis(logprob=-1.2), SPEECH, False),
    ],
)
def test_hallucinations_are_rejected_and_speech_is_not(
    candidate: PartialHypothesis, speech_probs: list[float], rejected: bool
):
    found = is_hallucination(utterance(), candidate, np.array(speech_probs, np.float32), 0.5, TOKENIZER)
    assert found is rejected

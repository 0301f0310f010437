"""What tokens of a running utterance come to: text, sentences, words, and whether anybody said it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harken.decoding import PartialHypothesis
from harken.decoding.decode_windows import compression_ratio
from harken.streaming.utterance import ActiveUtterance, TimedToken
from harken.streaming.utterance_text import (
    display_text,
    ends_sentence,
    is_hallucination,
    utterance_segments,
    utterance_words,
)
from harken.text import Tokenizer
from tiny_models import TOKENIZER

START_FRAME = 1000
STEP = 10
"""Positions from the start of one token to that of the next."""


def spelled(data: bytes, first: int = 0) -> list[TimedToken]:
    """Committed tokens, a byte each, that begin one after another."""
    return [
        TimedToken(
            token=byte,
            logprob=-0.1 * (i % 3),
            start_position=STEP * (first + i),
            end_position=STEP * (first + i + 1),
        )
        for i, byte in enumerate(data)
    ]


def running(committed: bytes = b"", tentative: bytes = b"", language: str | None = "en") -> ActiveUtterance:
    its = ActiveUtterance(
        encoder=None,
        n_mels=8,
        start_frame=START_FRAME,
        committed=spelled(committed),
        tentative=tuple(tentative),
        language=language,
    )
    its.encoded_frames, its.no_speech_prob = 400, 0.25
    return its


# --- text --------------------------------------------------------------------------------------------------

EURO = "€".encode()


@pytest.mark.parametrize(
    ("committed", "tentative", "expected"),
    [
        (b"", b"", ("", "")),
        (b"", b" To be", ("", "To be")),
        (b" To", b" be", ("To", " be")),
        (b" To be", b"", ("To be", "")),
        (b" To", b"gether", ("To", "gether")),
        # a character that is not whole yet is not shown
        (b" a", b" " + EURO[:1], ("a", " ")),
        (b" a", b" " + EURO[:2], ("a", " ")),
        (b" a", b" " + EURO, ("a", " €")),
        (b"", EURO[:2], ("", "")),
        (b" " + EURO, EURO[:1], ("€", "")),
        # neither where it was committed, so that no text that was shown changes
        (b" a" + EURO[:1], b"", ("a", "")),
        (b" a" + EURO[:1], EURO[1:2], ("a", "")),
        (b" a" + EURO[:1], EURO[1:], ("a", "€")),
        (b" a" + EURO[:2], EURO[2:] + b" b", ("a", "€ b")),
        # what will never be one is
        (b" a\xe2", b" b", ("a", "� b")),
        (b" a\xe2 b", b" c", ("a� b", " c")),
    ],
)
def test_what_is_shown(committed: bytes, tentative: bytes, expected: tuple[str, str]):
    assert display_text(running(committed, tentative), TOKENIZER) == expected


@given(text=st.text("ab €é😀.", max_size=12), cuts=st.lists(st.integers(0, 48), min_size=4, max_size=4))
@example(text="€", cuts=[1, 2, 2, 3])
def test_committed_text_only_grows_and_never_ends_inside_a_character(text: str, cuts: list[int]):
    """However a text is cut into tokens that are committed, tentative, or not known yet."""
    data = text.encode()
    steps = sorted(min(cut, len(data)) for cut in cuts)
    told = [display_text(running(data[:a], data[a:b]), TOKENIZER) for a, b in pairwise(steps)]
    for (committed, tentative), (a, b) in zip(told, pairwise(steps), strict=True):
        assert text.lstrip().startswith(committed + tentative)
        assert not committed or committed.encode() in data[:a]
        assert len(data[:b].decode(errors="ignore").lstrip()) == len(committed + tentative)
    for (before, _), (after, _) in pairwise(told):
        assert after.startswith(before)


@pytest.mark.parametrize(
    ("committed", "tentative", "ends"),
    [
        (b"", b"", False),
        (b" To be.", b"", True),
        (b" To be", b".", True),
        (b" To be.", b" Or", False),
        (b" To be", b"?", True),
        (b" To be", b"! ", True),
        (b" To be", b",", False),
        (b" To be", b"...", True),
        ("好".encode(), "。".encode(), True),
        ("好".encode(), "。".encode()[:2], False),
        ("好".encode(), "？".encode(), True),
        (b" No. 5", b"", False),
    ],
)
def test_whether_it_is_the_end_of_a_sentence(committed: bytes, tentative: bytes, ends: bool):
    assert ends_sentence(running(committed, tentative), TOKENIZER) is ends


# --- words and sentences -----------------------------------------------------------------------------------


def test_words_have_the_times_of_the_stream():
    """A token each 0.2 s; the utterance begins after 10 s."""
    one, other = utterance_words(spelled(b" To be,"), running(), TOKENIZER)
    assert (one.text, one.start_s, one.end_s) == (" To", 10.0, pytest.approx(10.6))
    assert (other.text, other.start_s, other.end_s) == (" be,", pytest.approx(10.6), pytest.approx(11.4))
    assert one.probability == pytest.approx(np.mean(np.exp([0.0, -0.1, -0.2])))
    assert other.probability == pytest.approx(np.mean(np.exp([0.0, -0.1, -0.2, 0.0])))


def test_a_word_from_before_a_cut_begins_with_the_utterance():
    moved = [its.rebased(7) for its in spelled(b" To")]
    (word,) = utterance_words(moved, running(), TOKENIZER)
    assert word.start_s == 10.0
    assert word.end_s == pytest.approx(10.0 + 0.02 * 23)


def test_marks_go_with_the_word_before_them():
    found = utterance_words(spelled(b" He said: go!) Then... so"), running(), TOKENIZER)
    assert [word.text for word in found] == [" He", " said:", " go!)", " Then...", " so"]


def test_a_mark_without_a_word_before_it_stands_alone():
    """As where the word was told with an earlier event."""
    assert [word.text for word in utterance_words(spelled(b". To"), running(), TOKENIZER)] == [".", " To"]


def test_words_of_a_language_without_spaces():
    found = utterance_words(spelled("好。吗".encode()), running(language="zh"), TOKENIZER)
    assert [word.text for word in found] == ["好。", "吗"]
    (whole,) = utterance_words(spelled("好吗".encode()), running(language="en"), TOKENIZER)
    assert whole.text == "好吗"


def test_a_language_that_is_not_known_yet_is_written_with_spaces():
    assert [its.text for its in utterance_words(spelled(b" To be"), running(language=None), TOKENIZER)] == [
        " To",
        " be",
    ]


def told(
    data: bytes, *, with_words: bool = False, its: ActiveUtterance | None = None
) -> list[tuple[str, float, float]]:
    found = utterance_segments(spelled(data), its or running(), TOKENIZER, with_words=with_words)
    return [(one.text, round(one.start_s, 3), round(one.end_s, 3)) for one in found]


def test_a_sentence_is_a_segment():
    assert told(b" To be. Or not? To") == [
        (" To be.", 10.0, 11.4),
        (" Or not?", 11.4, 13.0),
        (" To", 13.0, 13.6),
    ]
    assert told(b" To be.") == [(" To be.", 10.0, 11.4)]
    assert told(b"") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" So... what", [" So...", " what"]),
        (' "Go!" he said.', [' "Go!" he said.']),
        (" No", [" No"]),
        (" 好。吗？", [" 好。", "吗？"]),
        (" It is 5.30 now.", [" It is 5.30 now."]),
    ],
)
def test_where_a_sentence_ends(text: str, expected: list[str]):
    its = running(language="zh" if "好" in text else "en")
    assert [one for one, _, _ in told(text.encode(), its=its)] == expected


def test_what_a_segment_knows():
    spoken = spelled(b" To be. Or")
    first, second = utterance_segments(spoken, running(), TOKENIZER, with_words=True)
    assert first.tokens + second.tokens == (*b" To be. Or",)
    assert first.avg_logprob == pytest.approx(np.mean([its.logprob for its in spoken[:7]]))
    assert second.avg_logprob == pytest.approx(np.mean([its.logprob for its in spoken[7:]]))
    assert first.compression_ratio == compression_ratio(" To be.")
    assert (first.temperature, first.no_speech_prob, first.seek_s, first.language) == (0.0, 0.25, 10.0, "en")
    assert [word.text for word in first.words] == [" To", " be."]
    assert (first.words[0].start_s, first.words[-1].end_s) == (first.start_s, first.end_s)
    assert utterance_segments(spoken, running(), TOKENIZER, with_words=False)[0].words == ()


@given(text=st.text("ab .?€,\"'", max_size=25))
def test_segments_are_the_text_and_nothing_else(text: str):
    found = utterance_segments(spelled(text.encode()), running(), TOKENIZER, with_words=True)
    assert "".join(its.text for its in found) == text
    assert "".join(word.text for its in found for word in its.words) == text
    assert all(one.end_s <= other.start_s for one, other in pairwise(found))
    assert all(one.end_s <= other.start_s for its in found for one, other in pairwise(its.words))


@given(data=st.binary(max_size=20))
def test_bytes_that_are_no_text_lose_no_token(data: bytes):
    found = utterance_segments(spelled(data), running(), TOKENIZER, with_words=True)
    assert tuple(token for its in found for token in its.tokens) == tuple(data)


def test_tokens_of_more_than_a_byte():
    english = Tokenizer.builtin(51864)
    text = " Ask not what your country can do for you."
    spoken = [
        TimedToken(token=token, logprob=0.0, start_position=i, end_position=i + 1)
        for i, token in enumerate(english.encode(text))
    ]
    found = utterance_words(spoken, running(), english)
    assert "".join(word.text for word in found) == text
    assert [word.text for word in found][-1] == " you."


# --- whether anybody said it -------------------------------------------------------------------------------


def hypothesis(
    text: str = " To be or not to be",
    *,
    logprob: float = -0.1,
    no_speech_prob: float | None = 0.05,
    scattered: bool = False,
) -> PartialHypothesis:
    n = len(text)
    attention = np.zeros((2, n + 1, 300), np.float32)
    if scattered:
        attention += 1 / 300
    else:
        attention[:, np.arange(n + 1), 5 * np.arange(n + 1)] = 1
    return PartialHypothesis(
        tokens=tuple(text.encode()),
        logprobs=(logprob,) * n,
        attended_positions=5 * np.arange(n + 1),
        attention=attention,
        reached_eot=True,
        no_speech_prob=no_speech_prob,
    )


def doubtful(
    grown: PartialHypothesis,
    speech: Sequence[float],
    *,
    its: ActiveUtterance | None = None,
    threshold: float = 0.5,
) -> bool:
    return is_hallucination(its or running(), grown, np.array(speech, np.float32), threshold, TOKENIZER)


SPEECH, HALF, NOISE = [0.9] * 100, [0.45] * 100, [0.02] * 100


@pytest.mark.parametrize(
    ("grown", "speech", "invented"),
    [
        (hypothesis(), SPEECH, False),
        (hypothesis(scattered=True, logprob=-1.3, no_speech_prob=0.9), NOISE, True),
        (hypothesis(" Thank you.", scattered=True), NOISE, True),
        (hypothesis(" Thank you."), SPEECH, False),
        (hypothesis(" a a a a a a a a a a a a a", logprob=-1.2, scattered=True), HALF, True),
        (hypothesis(" a b c d e f g h i j k l m", logprob=-1.0, scattered=True), HALF, False),
        (hypothesis(logprob=-1.2), SPEECH, False),
    ],
)
def test_text_that_probably_nobody_said(grown: PartialHypothesis, speech: list[float], invented: bool):
    assert doubtful(grown, speech) is invented


def test_each_observation_weighs():
    """Just enough of them against what is said, and one less."""
    against = {"logprob": -1.1, "no_speech_prob": 1.0, "scattered": True}
    assert doubtful(hypothesis(**against), HALF)
    for one, value in {"logprob": -0.1, "no_speech_prob": 0.0, "scattered": False}.items():
        assert not doubtful(hypothesis(**against | {one: value}), HALF), one
    assert not doubtful(hypothesis(**against), SPEECH)


def test_where_nobody_asked_for_silence_the_last_answer_counts():
    its = running()
    its.no_speech_prob = 1.0
    unasked = hypothesis(logprob=-1.2, scattered=True, no_speech_prob=None)
    assert doubtful(unasked, HALF, its=its)
    its.no_speech_prob = 0.0
    assert not doubtful(unasked, HALF, its=its)


def test_the_threshold_is_a_score():
    grown = hypothesis(scattered=True)
    assert doubtful(grown, SPEECH, threshold=0.0)
    assert not doubtful(grown, SPEECH, threshold=1.0)


def test_nothing_said_and_nothing_heard():
    assert doubtful(hypothesis(""), [], threshold=0.0)

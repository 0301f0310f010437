"""Hotwords: the share of the bonus of each token after a text, and what a published model transcribes with them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.backends.host_logits import HostLogits
from harken.decoding import make_logit_rules
from harken.decoding.logit_rules import make_hotword_bias
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, recognizer, recordings
from tiny_models import TOKENIZER

ENGLISH = Tokenizer.builtin(51864)
BEGIN = ENGLISH.timestamp_begin


def token(text: str) -> int:
    (token_id,) = ENGLISH.encode(text)
    return token_id


def test_memory_is_bounded_by_that_of_the_most_hotwords() -> None:
    words = [f"{number:05}" + "é" * 95 for number in range(500)]
    tracemalloc.start()
    try:
        assert make_hotword_bias(ENGLISH, words) is not None
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()
    for refused, message in (
        ([*words, "Lynde"], "at most 50000 characters in all"),
        (["Lynde", "x" * 101], r"hotwords='xxx.*at most 100 characters each"),
    ):
        with pytest.raises(OptionError, match=message):
            make_hotword_bias(ENGLISH, refused)


@pytest.mark.parametrize(
    ("hotwords", "before", "expected"),
    [
        # The first token gets its share of the bonus; of several words, the shortest counts.
        (["Lynde"], [], {" L": 2 / 6, " Ly": 3 / 6, " Lind": 0, " the": 0}),
        (["Spring"], [], {" Spring": 1}),
        (["Spring", "Springfield"], [], {" Spring": 1}),
        # A continuation gets all of it, however it is tokenized.
        (["Lynde"], [" Ly"], {"nd": 1, "n": 1, "nn": 0, " N": 0}),
        (["Lynde"], [" L", "yn"], {"de": 1, "d": 1, "ne": 0}),
        (["Lynde"], [" the", " L"], {"y": 1}),
        # A complete or an abandoned word is not continued.
        (["Lynde"], [" L", "yn", "de"], {"de": 0, "r": 0, " Ly": 0.5, ",": 0}),
        (["Lynde"], [" L", "ord"], {"nd": 0, "de": 0, "y": 0}),
        # A timestamp ends a part of a word.
        (["Lynde"], [" Ly", BEGIN + 50], {"nd": 0}),
        (["Lynde"], [BEGIN], {" Ly": 3 / 6, "Ly": 2 / 5}),
        # A hotword does not begin inside a word.
        (["gin"], [" be"], {"gin": 0, " gin": 1}),
        (["gin"], [' "'], {"gin": 1}),
        (["gin"], [" be", "g"], {"in": 0}),
        # It matches as given and capitalized.
        (["spring"], [], {" spring": 1, " Spring": 1, "Spring": 1}),
        (["Spring"], [], {" spring": 0, " Spring": 1}),
        # It may be a phrase.
        ([" White   Leghorns "], [" White"], {" Leg": 1, " House": 0}),
    ],
)
def test_share_of_the_full_bonus(
    hotwords: list[str], before: list[str | int], expected: dict[str, float]
) -> None:
    bias = make_hotword_bias(ENGLISH, hotwords)
    assert bias
    prefix = [each if isinstance(each, int) else token(each) for each in before]
    found = bias.bonuses(prefix, [token(text) for text in expected])
    assert {text: found.get(token(text), 0.0) / bias.strength for text in expected} == pytest.approx(expected)


def test_hotword_without_case_needs_no_space_before_it() -> None:
    vocabulary = Tokenizer.builtin(51865)
    bias, before, spelled = make_hotword_bias(vocabulary, ["凤凰"]), *map(vocabulary.encode, ("看", "凤凰"))
    assert bias
    assert bias.bonuses(before, spelled[:1])
    for index in range(1, len(spelled)):
        assert bias.bonuses([*before, *spelled[:index]], [spelled[index]]) == {spelled[index]: bias.strength}


@pytest.mark.parametrize(
    ("logit", "suppressed", "expected"), [(-6.0, [], "nd"), (-8.1, [], "nn"), (0.0, ["nd"], "nn")]
)
def test_bonus_makes_a_plausible_token_win_that_is_not_banned(
    logit: float, suppressed: list[str], expected: str
) -> None:
    rules = make_logit_rules(
        ENGLISH, timestamps=False, suppress_tokens=[token(text) for text in suppressed], hotwords=["Lynde"]
    )
    table = np.full((1, ENGLISH.n_vocab), -30, np.float32)
    table[0, [token("nn"), token("nd")]] = 0.0, logit
    logits = HostLogits(table)
    rules.apply(logits, [[token(" Ly")]])
    assert ENGLISH.decode(logits.top(1)[0][0].tolist()) == expected


STAMP = TOKENIZER.timestamp_begin
prefixes = st.lists(st.sampled_from([*b" aeimnrtT", 0xC3, 0xA9, STAMP, STAMP + 25, STAMP + 100]), max_size=12)
hotwords = st.lists(st.text("aeinrt é", max_size=8), min_size=1, max_size=4)


@given(words=hotwords, context=prefixes, upto=st.integers(1, 8))
def test_every_token_of_a_hotword_gets_a_bonus_and_none_gets_more(
    words: list[str], context: list[int], upto: int
) -> None:
    bias = make_hotword_bias(TOKENIZER, words)
    if bias is None:
        assert not "".join(words).split()
        return
    bonuses = bias.bonuses(context, range(TOKENIZER.n_vocab))
    assert set(bonuses) <= set(range(256))
    assert all(0 < bonus <= bias.strength for bonus in bonuses.values())
    for word in words:
        spelled = TOKENIZER.encode(" " + " ".join(word.split()))
        if len(spelled) > upto:
            assert bias.bonuses([*context, *spelled[:upto]], [spelled[upto]]) == {spelled[upto]: bias.strength}


# --- tiny.en ----------------------------------------------------------------------------------------------

NAMES = ("Lynde", "Avonlea", "d'Artagnan", "Nuzhat", "Fuegians", "Cavell", "Steventon", "Merneptah", "Ilyin")
FIRST: dict[str, Any] = {"vad": False, "hallucination_threshold": None, "temperatures": (0.0,)}
"""Options for the first attempt at every window, speech or not."""


def transcribe(audio: Any, *hotwords: str, **options: Any) -> str:
    return recognizer("int8").transcribe(audio, hotwords=hotwords, **FIRST | options).text


@pytest.mark.real
def test_spoken_hotwords_are_transcribed_and_others_change_nothing() -> None:
    assert transcribe(EXAMPLE, *NAMES) == transcribe(EXAMPLE)
    (path,) = (path for path in recordings("librispeech-train-clean") if path.name == "103-1240-0000.flac")
    counts = [[transcribe(path, *names).count(name) for name in NAMES[:2]] for names in ((), NAMES)]
    assert counts == [[0, 0], [2, 1]]


@pytest.mark.real
def test_no_hotword_is_transcribed_without_speech() -> None:
    time_s = np.arange(6 * SAMPLE_RATE) / SAMPLE_RATE
    hiss = np.random.default_rng(0).standard_normal(len(time_s)) / 20
    for samples in (np.zeros(len(time_s)), hiss, np.sin(2 * np.pi * 100 * time_s) / 10):
        unfiltered = {"no_speech_threshold": None, "compression_ratio_threshold": None}
        text = transcribe(samples.astype(np.float32), *NAMES, **unfiltered)
        assert not [name for name in NAMES if name.lower() in text.lower()]

"""Hotwords as tables: after which text which tokens get which part of the bonus."""

from __future__ import annotations

import numpy as np
import pytest

from harken.backends.host_logits import HostLogits
from harken.decoding import make_logit_rules
from harken.decoding.logit_rules import HotwordBias, make_hotword_bias
from harken.text import Tokenizer

ENGLISH = Tokenizer.builtin(51864)
BEGIN = ENGLISH.timestamp_begin


def biased(*hotwords: str) -> HotwordBias:
    bias = make_hotword_bias(ENGLISH, hotwords)
    assert bias is not None
    return bias


def token(text: str) -> int:
    (its,) = ENGLISH.encode(text)
    return its


def parts(bias: HotwordBias, before: list[int], *candidates: str) -> list[float]:
    """Which part of the whole bonus each candidate gets."""
    found = bias.bonuses(before, [token(text) for text in candidates])
    return [found.get(token(text), 0.0) / bias.strength for text in candidates]


def test_no_words_are_no_bias() -> None:
    assert make_hotword_bias(ENGLISH, []) is None
    assert make_hotword_bias(ENGLISH, ["", "  "]) is None
    assert make_logit_rules(ENGLISH, timestamps=True).hotword_bias is None
    assert make_logit_rules(ENGLISH, timestamps=True, hotwords=["Lynde"]).hotword_bias is not None


def test_a_beginning_gets_the_part_of_the_word_that_it_spells() -> None:
    lynde = biased("Lynde")
    assert parts(lynde, [], " L", " Ly", " Lind", " the") == pytest.approx([2 / 6, 3 / 6, 0, 0])
    assert parts(biased("Spring"), [], " Spring") == [1.0]
    assert parts(biased("Spring", "Springfield"), [], " Spring") == [1.0]  # the shortest word counts


def test_what_goes_on_gets_all_of_it_however_the_word_is_cut() -> None:
    lynde = biased("Lynde")
    assert parts(lynde, [token(" Ly")], "nd", "n", "nn", " N") == [1, 1, 0, 0]
    assert parts(lynde, [token(" L"), token("yn")], "de", "d", "ne") == [1, 1, 0]
    assert parts(lynde, [token(" the"), token(" L")], "y") == [1]


def test_a_word_that_is_complete_goes_on_no_further() -> None:
    assert parts(biased("Lynde"), ENGLISH.encode(" Lynde"), "de", "r", " Ly", ",") == [0, 0, 0.5, 0]


def test_a_word_left_is_left() -> None:
    assert parts(biased("Lynde"), [token(" L"), token("ord")], "nd", "de", "y") == [0, 0, 0]


def test_a_timestamp_ends_a_word() -> None:
    lynde = biased("Lynde")
    assert parts(lynde, [token(" Ly"), BEGIN + 50], "nd") == [0]
    assert parts(lynde, [BEGIN], " Ly", "Ly") == pytest.approx([3 / 6, 2 / 5])


def test_inside_a_word_none_begins() -> None:
    gin = biased("gin")
    assert parts(gin, [token(" be")], "gin", " gin") == [0, 1]
    assert parts(gin, [token(' "')], "gin") == [1]
    assert parts(gin, [token(" be"), token("g")], "in") == [0]


def test_words_are_spelled_as_given_and_with_a_capital() -> None:
    assert parts(biased("spring"), [], " spring", " Spring", "Spring") == [1, 1, 1]
    assert parts(biased("Spring"), [], " spring", " Spring") == [0, 1]


def test_a_hotword_of_several_words() -> None:
    assert parts(biased(" White   Leghorns "), ENGLISH.encode(" White"), " Leg", " House") == [1, 0]


def test_scripts_without_case_need_no_space() -> None:
    vocabulary = Tokenizer.builtin(51865)
    bias = make_hotword_bias(vocabulary, ["凤凰"])
    assert bias is not None
    before = vocabulary.encode("看")
    assert bias.bonuses(before, vocabulary.encode("凤")[:1])
    spelled = vocabulary.encode("凤凰")
    for place in range(1, len(spelled)):
        assert bias.bonuses([*before, *spelled[:place]], [spelled[place]]) == {spelled[place]: bias.strength}


def test_special_tokens_get_nothing() -> None:
    lynde = biased("Lynde")
    assert lynde.bonuses([token(" Ly")], [ENGLISH.eot, ENGLISH.sot, BEGIN, ENGLISH.n_vocab - 1]) == {}


def logits(**values: float) -> HostLogits:
    """All logits -30, but for the given ones; underscores stand for spaces."""
    table = np.full((1, ENGLISH.n_vocab), -30, np.float32)
    for text, value in values.items():
        table[0, token(text.replace("_", " "))] = value
    return HostLogits(table)


def best(table: HostLogits) -> str:
    return ENGLISH.decode(table.top(1)[0][0].tolist())


def test_a_plausible_token_wins_by_its_bonus() -> None:
    table = logits(nn=0.0, nd=-6.0)
    biased("Lynde").apply(table, [[token(" Ly")]])
    assert best(table) == "nd"


def test_an_implausible_token_gets_nothing() -> None:
    bias = biased("Lynde")
    table = logits(nn=0.0, nd=-bias.max_logprob_gap - 0.1)
    before = table.values.copy()
    bias.apply(table, [[token(" Ly")]])
    np.testing.assert_array_equal(table.values, before)


def test_what_is_banned_stays_banned() -> None:
    rules = make_logit_rules(ENGLISH, timestamps=False, suppress_tokens=[token("nd")], hotwords=["Lynde"])
    table = logits(nn=0.0, nd=0.0)
    rules.apply(table, [[token(" Ly")]])
    assert table.values[0, token("nd")] == -np.inf
    assert best(table) == "nn"

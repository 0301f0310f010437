"""Tests of the hotword bias: the share of the bonus of each token after a text."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.backends.host_logits import HostLogits
from harken.decoding import make_logit_rules
from harken.decoding.logit_rules import HotwordBias, make_hotword_bias
from harken.errors import OptionError
from harken.text import Tokenizer
from tiny_models import TOKENIZER

ENGLISH = Tokenizer.builtin(51864)
BEGIN = ENGLISH.timestamp_begin


def biased(*hotwords: str) -> HotwordBias:
    bias = make_hotword_bias(ENGLISH, hotwords)
    assert bias is not None
    return bias


def token(text: str) -> int:
    (token_id,) = ENGLISH.encode(text)
    return token_id


def shares(bias: HotwordBias, before: list[int], *candidates: str) -> list[float]:
    """Return the share of the full bonus that each candidate gets."""
    found = bias.bonuses(before, [token(text) for text in candidates])
    return [found.get(token(text), 0.0) / bias.strength for text in candidates]


def test_no_hotwords_make_no_bias() -> None:
    assert make_hotword_bias(ENGLISH, []) is None
    assert make_hotword_bias(ENGLISH, ["", "  "]) is None
    assert make_logit_rules(ENGLISH, timestamps=True).hotword_bias is None
    assert make_logit_rules(ENGLISH, timestamps=True, hotwords=["Lynde"]).hotword_bias is not None


def test_first_token_gets_its_share_of_the_bonus() -> None:
    lynde = biased("Lynde")
    assert shares(lynde, [], " L", " Ly", " Lind", " the") == pytest.approx([2 / 6, 3 / 6, 0, 0])
    assert shares(biased("Spring"), [], " Spring") == [1.0]
    assert shares(biased("Spring", "Springfield"), [], " Spring") == [1.0]  # the shortest word counts


def test_continuation_gets_the_full_bonus_for_any_tokenization() -> None:
    lynde = biased("Lynde")
    assert shares(lynde, [token(" Ly")], "nd", "n", "nn", " N") == [1, 1, 0, 0]
    assert shares(lynde, [token(" L"), token("yn")], "de", "d", "ne") == [1, 1, 0]
    assert shares(lynde, [token(" the"), token(" L")], "y") == [1]


def test_a_long_hotword_is_refused() -> None:
    assert make_hotword_bias(ENGLISH, ["x" * 100]) is not None
    with pytest.raises(OptionError, match=r"hotwords='xxx.*at most 100 characters each"):
        make_hotword_bias(ENGLISH, ["Lynde", "x" * 101])


def test_memory_is_bounded_by_that_of_the_most_hotwords() -> None:
    words = [f"{number:05}" + "é" * 95 for number in range(500)]
    tracemalloc.start()
    try:
        assert make_hotword_bias(ENGLISH, words) is not None
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()
    with pytest.raises(OptionError, match="at most 50000 characters in all"):
        make_hotword_bias(ENGLISH, [*words, "Lynde"])


def test_complete_hotword_is_not_continued() -> None:
    assert shares(biased("Lynde"), ENGLISH.encode(" Lynde"), "de", "r", " Ly", ",") == [0, 0, 0.5, 0]


def test_abandoned_hotword_is_not_continued() -> None:
    assert shares(biased("Lynde"), [token(" L"), token("ord")], "nd", "de", "y") == [0, 0, 0]


def test_timestamp_ends_a_partial_hotword() -> None:
    lynde = biased("Lynde")
    assert shares(lynde, [token(" Ly"), BEGIN + 50], "nd") == [0]
    assert shares(lynde, [BEGIN], " Ly", "Ly") == pytest.approx([3 / 6, 2 / 5])


def test_hotword_does_not_begin_inside_a_word() -> None:
    gin = biased("gin")
    assert shares(gin, [token(" be")], "gin", " gin") == [0, 1]
    assert shares(gin, [token(' "')], "gin") == [1]
    assert shares(gin, [token(" be"), token("g")], "in") == [0]


def test_hotwords_match_as_given_and_capitalized() -> None:
    assert shares(biased("spring"), [], " spring", " Spring", "Spring") == [1, 1, 1]
    assert shares(biased("Spring"), [], " spring", " Spring") == [0, 1]


def test_hotword_may_be_a_phrase() -> None:
    assert shares(biased(" White   Leghorns "), ENGLISH.encode(" White"), " Leg", " House") == [1, 0]


def test_hotword_without_case_needs_no_space_before_it() -> None:
    vocabulary = Tokenizer.builtin(51865)
    bias = make_hotword_bias(vocabulary, ["凤凰"])
    assert bias is not None
    before = vocabulary.encode("看")
    assert bias.bonuses(before, vocabulary.encode("凤")[:1])
    spelled = vocabulary.encode("凤凰")
    for index in range(1, len(spelled)):
        assert bias.bonuses([*before, *spelled[:index]], [spelled[index]]) == {spelled[index]: bias.strength}


def test_special_tokens_get_no_bonus() -> None:
    lynde = biased("Lynde")
    assert lynde.bonuses([token(" Ly")], [ENGLISH.eot, ENGLISH.sot, BEGIN, ENGLISH.n_vocab - 1]) == {}


def logits(**values: float) -> HostLogits:
    """Make logits of -30 but for the given ones; underscores stand for spaces."""
    table = np.full((1, ENGLISH.n_vocab), -30, np.float32)
    for text, value in values.items():
        table[0, token(text.replace("_", " "))] = value
    return HostLogits(table)


def best(table: HostLogits) -> str:
    return ENGLISH.decode(table.top(1)[0][0].tolist())


def test_bonus_makes_a_plausible_token_win() -> None:
    table = logits(nn=0.0, nd=-6.0)
    biased("Lynde").apply(table, [[token(" Ly")]])
    assert best(table) == "nd"


def test_implausible_token_gets_no_bonus() -> None:
    bias = biased("Lynde")
    table = logits(nn=0.0, nd=-bias.max_logprob_gap - 0.1)
    before = table.values.copy()
    bias.apply(table, [[token(" Ly")]])
    np.testing.assert_array_equal(table.values, before)


def test_bonus_does_not_lift_a_ban() -> None:
    rules = make_logit_rules(ENGLISH, timestamps=False, suppress_tokens=[token("nd")], hotwords=["Lynde"])
    table = logits(nn=0.0, nd=0.0)
    rules.apply(table, [[token(" Ly")]])
    assert table.values[0, token("nd")] == -np.inf
    assert best(table) == "nn"


STAMP = TOKENIZER.timestamp_begin
prefixes = st.lists(st.sampled_from([*b" aeimnrtT", 0xC3, 0xA9, STAMP, STAMP + 25, STAMP + 100]), max_size=12)
hotwords = st.lists(st.text("aeinrt é", max_size=8), min_size=1, max_size=4)


@given(words=hotwords, prefix=prefixes)
def test_bonuses_lie_between_zero_and_strength(words: list[str], prefix: list[int]) -> None:
    bias = make_hotword_bias(TOKENIZER, words)
    if bias is None:
        assert not "".join(words).split()
        return
    bonuses = bias.bonuses(prefix, range(TOKENIZER.n_vocab))
    assert set(bonuses) <= set(range(256))
    assert all(0 < bonus <= bias.strength for bonus in bonuses.values())


@given(words=hotwords, context=prefixes, upto=st.integers(1, 8))
def test_every_token_of_a_hotword_gets_a_bonus(words: list[str], context: list[int], upto: int) -> None:
    bias = make_hotword_bias(TOKENIZER, words)
    for word in words:
        spelled = TOKENIZER.encode(" " + " ".join(word.split()))
        if bias is None or len(spelled) <= upto:
            continue
        assert bias.bonuses([*context, *spelled[:upto]], [spelled[upto]]) == {spelled[upto]: bias.strength}

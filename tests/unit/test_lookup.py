"""Drafts out of text that is known: where they look, what they propose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.decoding.candidate_generator import (
    MAX_CONTINUATION_TOKENS,
    MAX_NGRAM_SIZE,
    DraftRequest,
    DraftTokens,
    PromptLookup,
    common_prefix_length,
)
from harken.decoding.logit_rules import make_logit_rules
from tiny_models import TOKENIZER


def ask(prefix: str, limit: int = 4, row: int = 0, **more: float) -> DraftRequest:
    return DraftRequest(row=row, prefix=[ord(its) for its in prefix], max_tokens=limit, **more)


def found(lookup: PromptLookup, *asks: DraftRequest) -> list[str]:
    return ["".join(map(chr, its.tokens)) for its in lookup.propose(asks)]


def spelled(*texts: str) -> list[tuple[int, ...]]:
    return [tuple(map(ord, text)) for text in texts]


@pytest.mark.parametrize(
    ("prompt", "prefix", "expected"),
    [
        ("", "", ""),
        ("the cat sat", "a cat", " sat"),
        ("the cat sat", "a ca", "t sa"),
        ("", "one two one t", "wo o"),
        ("the cat. the cot. ", "the c", "ot. "),  # the last place
        ("the cat. the cot. ", "see the ca", "t. t"),  # the longest match
        ("the cat sat", "x", ""),
        ("the cat sat", "ca", ""),  # too short a match
        ("", "the cat", ""),  # its own end is no place
        ("abcabc", "abc", "abc"),  # the last one with something behind it
        ("aaaa", "aaaa", "a"),
    ],
)
def test_n_grams(prompt: str, prefix: str, expected: str) -> None:
    assert found(PromptLookup(spelled(prompt), min_ngram_size=3), ask(prefix)) == [expected]


def test_a_short_match_is_a_match_if_it_may_be() -> None:
    assert found(PromptLookup(spelled("the cat sat"), min_ngram_size=2), ask("x ca")) == ["t sa"]


def test_a_match_is_no_longer_than_it_needs_to_be() -> None:
    """Two places agree on the last tokens, and only the first one on what is before these."""
    text = "-abcdefX-zzcdefY"
    assert MAX_NGRAM_SIZE == 4
    assert found(PromptLookup(spelled(text)), ask("-abcdef", limit=1)) == ["Y"]


@pytest.mark.parametrize(
    ("before", "prefix", "expected"),
    [
        ("", "", ""),
        ("hello there", "", "hell"),
        ("hello there", "hel", "lo t"),
        ("hello there", "hello there", ""),
        ("hello there", "hello there.", ""),
        ("hello there", "Hel", "lo t"),
        ("hello there", "Hallo", " the"),
        ("an ant and an ape", "an ant and an", " ape"),  # as far as it agrees, not elsewhere
        ("an ant and an ape", "An ant and an", " ape"),  # of several places the one at the same distance
        ("an ant and an ape", "An", " ant"),
        ("hello", "xyz", ""),
    ],
)
def test_an_earlier_hypothesis(before: str, prefix: str, expected: str) -> None:
    lookup = PromptLookup(spelled(before), same_audio=True, min_ngram_size=1)
    assert found(lookup, ask(prefix)) == [expected]


@pytest.mark.parametrize(
    ("before", "prefix", "expected"),
    [
        ("hello there", "0", "hell"),
        ("hello there", "0hel", "lo t"),
        ("hello there", "0hello5", "5 th"),  # the next segment begins where this one ends
        ("hello there", "0hello55", " the"),
        ("hello there", "0hello56", " the"),
        ("hello there", "0Hallo55", " the"),
        ("hello there", "0hello there9", ""),
        ("hello there", "hello", " the"),
        ("0hello55 there9", "0hello", "55 t"),  # it has times of its own
        ("0hello55 there9", "0hello5", "5 th"),
        ("0hello55 there9", "0hello6", ""),
        ("", "0", ""),
    ],
)
def test_an_earlier_hypothesis_without_times(before: str, prefix: str, expected: str) -> None:
    def timed(text: str) -> list[int]:
        return [ord(its) + 1000 * its.isdigit() for its in text]

    lookup = PromptLookup([timed(before)], same_audio=True, min_ngram_size=1, timestamp_begin=1000)
    (proposal,) = lookup.propose([DraftRequest(row=0, prefix=timed(prefix), max_tokens=4)])
    assert "".join(chr(token % 1000) for token in proposal.tokens) == expected


def test_what_was_said_in_between_does_not_count_for_the_same_audio() -> None:
    lookup = PromptLookup(spelled("xyz"), same_audio=True, min_ngram_size=1)
    assert found(lookup, ask("abab")) == [""]


def test_each_row_has_its_text() -> None:
    lookup = PromptLookup(spelled("one two", "one ten"), min_ngram_size=3)
    assert found(lookup, ask("one t", row=1, limit=2), ask("one t", row=0, limit=2)) == ["en", "wo"]


def test_limits_and_claims() -> None:
    lookup = PromptLookup(spelled("ab" * 200), same_audio=True, confidence=0.9)
    assert lookup.propose([ask("", limit=0)]) == [DraftTokens()]
    (proposal,) = lookup.propose([ask("", limit=3)])
    assert proposal.confidences == (0.9, 0.9, 0.9)
    assert len(lookup.propose([ask("", limit=500)])[0].tokens) == MAX_CONTINUATION_TOKENS
    assert lookup.forwards == 0


@pytest.mark.parametrize(
    ("floor", "trust", "tokens"), [(0.0, 1.0, 8), (0.5, 1.0, 6), (0.5, 0.5, 0), (0.2, 0.5, 2)]
)
def test_nothing_is_proposed_that_is_not_worth_it(floor: float, trust: float, tokens: int) -> None:
    lookup = PromptLookup(spelled("abcdefgh"), same_audio=True, confidence=0.9)
    (proposal,) = lookup.propose([ask("", limit=8, verify_threshold=floor, calibration=trust)])
    assert len(proposal.tokens) == tokens


@given(st.text("ab ", max_size=30), st.text("ab ", max_size=20), st.booleans(), st.integers(0, 6))
def test_what_is_proposed_stands_in_the_text_behind_what_it_follows(
    text: str, prefix: str, same_audio: bool, limit: int
) -> None:
    lookup = PromptLookup(spelled(text), same_audio=same_audio, min_ngram_size=2)
    (proposed,) = found(lookup, ask(prefix, limit))
    assert len(proposed) <= limit
    whole = text if same_audio else text + prefix
    if proposed and not (same_audio and text.startswith(prefix)):
        assert prefix[-2:] + proposed in whole


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common(a: list[int], b: list[int]) -> None:
    n = common_prefix_length(a, b)
    assert a[:n] == b[:n]
    assert n in (len(a), len(b)) or a[n] != b[n]


def test_chance() -> None:
    assert ask("", calibration=0.5).acceptance_prob(0.8) == pytest.approx(0.4)
    assert ask("", calibration=1.3).acceptance_prob(0.9) == 0.99


def test_what_the_rules_forbid_is_not_proposed_nor_what_stands_behind_it() -> None:
    rules = make_logit_rules(TOKENIZER, timestamps=True, suppress_tokens=[7])
    stamp = TOKENIZER.timestamp_begin
    said = (stamp, 5, 6, 7, 8)
    lookup = PromptLookup([said, (stamp, 5, TOKENIZER.sot, 6)], same_audio=True, allows=rules.allows)
    first, second = lookup.propose(
        [DraftRequest(row=0, prefix=(), max_tokens=9), DraftRequest(row=1, prefix=(stamp,), max_tokens=9)]
    )
    assert first.tokens == (stamp, 5, 6)
    assert second.tokens == (5,)

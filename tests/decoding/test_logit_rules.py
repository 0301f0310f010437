"""Tests of the logit rules: the tokens that may follow a prefix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harken.backends.host_logits import HostLogits
from harken.decoding import LogitRules, make_logit_rules
from harken.errors import OptionError
from harken.text import Tokenizer
from tiny_models import TOKENIZER

EOT, BEGIN, N = TOKENIZER.eot, TOKENIZER.timestamp_begin, TOKENIZER.n_vocab
TEXT = 97


def tokens(written: str) -> list[int]:
    """Parse text such as "0.00 a 1.00": numbers are timestamps in seconds, letters are text."""
    return [BEGIN + round(float(word) * 50) if "." in word else ord(word) for word in written.split()]


def allowed(rules: LogitRules, prefix: list[int]) -> np.ndarray:
    """Return a mask of the ids that may follow, by the ranges alone."""
    mask = np.ones(N, bool)
    for start, stop in rules.banned(prefix):
        mask[start:stop] = False
    return mask


def grammar(rules: LogitRules, written: str) -> tuple[bool, bool, str]:
    """Return whether text and eot may follow, and the range of timestamps: "0.02-30.00", or "" for none."""
    mask = allowed(rules, tokens(written))
    times = np.flatnonzero(mask[BEGIN:]) / 50
    span = f"{times[0]:.2f}-{times[-1]:.2f}" if len(times) else ""
    return bool(mask[TEXT]), bool(mask[EOT]), span


@pytest.mark.parametrize(
    ("prefix", "text", "end", "timestamps"),
    [
        ("0.00 0.00", True, True, ""),
        ("0.00 a 30.00", False, True, "30.00-30.00"),
        ("30.00 a", True, True, ""),  # nothing is later than the end of the window
    ],
)
def test_timestamps_at_both_ends_of_the_window(prefix: str, text: bool, end: bool, timestamps: str) -> None:
    """Between them, tests/golden/test_decoding_golden.py compares the rules with those of openai-whisper."""
    rules = make_logit_rules(TOKENIZER, timestamps=True)
    assert grammar(rules, prefix) == (text, end, timestamps)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("0.00 a 2.00 2.50", False),  # a segment opens: it has text, since the speech ends in this window
        ("0.00 a 2.00 3.00", True),  # no speech is left
        ("0.00 a 2.00", True),
        ("0.00 a 2.00 2.50 b", True),
        ("0.00", True),  # a window without words
    ],
)
def test_text_does_not_end_where_a_segment_opens_before_the_end_of_speech(prefix: str, end: bool) -> None:
    rules = make_logit_rules(TOKENIZER, timestamps=True)
    banned = rules.banned(tokens(prefix), speech_end=BEGIN + 150)
    assert (not any(start <= EOT < stop for start, stop in banned)) == end
    assert [span for span in banned if span != (EOT, EOT + 1)] == rules.banned(tokens(prefix))


def test_special_tokens_and_those_asked_for_are_suppressed() -> None:
    names = ("sot", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech")
    specials = {getattr(TOKENIZER, name) for name in names}
    for asked, more in (((), ()), ((65, 66), (65, 66)), ((-1, 65), (65, *TOKENIZER.non_speech_tokens))):
        for timestamps in (False, True):
            rules = make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=asked)
            never = specials.union(more, [TOKENIZER.no_timestamps] * timestamps)
            assert set(rules.suppressed.tolist()) == never


def flat(text: float, timestamps: float) -> np.ndarray:
    """Make logits: one value for all text, 4 less for eot, and one for all timestamps."""
    logits = np.full(N, text, np.float32)
    logits[EOT:BEGIN] = text - 4
    logits[BEGIN:] = timestamps
    return logits


def test_every_position_is_judged_by_its_own_prefix() -> None:
    rules = make_logit_rules(TOKENIZER, timestamps=True, hotwords=["ab"])
    prefixes = [tokens(written) for written in ("", "0.00", "0.00 a", "0.00 a 1.00", "0.00 a 1.00 1.00")]
    together = HostLogits(np.tile(flat(0, -8), (len(prefixes), 1)))
    rules.apply(together, prefixes)
    for row, prefix in enumerate(prefixes):
        alone = HostLogits(flat(0, -8)[None])
        rules.apply(alone, [prefix])
        np.testing.assert_array_equal(together.values[row], alone.values[0])
    assert (
        len({row.tobytes() for row in np.isfinite(together.values)}) == len(prefixes) - 1
    )  # "0.00" as "1.00 1.00"


def test_forced_prefix_comes_first_or_behind_the_first_timestamp() -> None:
    within, without = (
        make_logit_rules(TOKENIZER, timestamps=timestamps, forced_prefix=tokens("a b"))
        for timestamps in (True, False)
    )
    for rules, start in ((within, "0.50 "), (without, "")):
        for prefix, expected in (("", "a"), ("a", "b")):
            assert np.flatnonzero(allowed(rules, tokens(start + prefix))).tolist() == tokens(expected)
    assert grammar(within, "") == (False, False, "0.00-1.00")
    assert grammar(within, "0.50 a b") == (True, True, "0.52-30.00")
    assert allowed(without, tokens("a b")).all()


def test_forced_prefix_lifts_suppression() -> None:
    star = ord("*")
    assert star in make_logit_rules(TOKENIZER, timestamps=False).suppressed
    logits = HostLogits(flat(0, 5)[None])
    make_logit_rules(TOKENIZER, timestamps=True, forced_prefix=[star]).apply(logits, [tokens("0.00")])
    assert logits.top(1)[0].tolist() == [[star]]


def test_tokens_matching_suppress_regex_anywhere_are_suppressed() -> None:
    patterns = {"[0-9]+": "0123456789", "^x$": "x", "(?i)[q-r]": "QRqr", r"\.": ".", "ab": ""}
    for pattern, never in patterns.items():
        rules = make_logit_rules(TOKENIZER, timestamps=False, suppress_tokens=(), suppress_regex=pattern)
        assert "".join(chr(token) for token in rules.suppressed if token < 128) == never
    vocabulary = Tokenizer.builtin(51864)
    rules = make_logit_rules(vocabulary, timestamps=False, suppress_tokens=(), suppress_regex="[0-9]")
    assert {vocabulary.describe_token(token) for token in rules.suppressed} >= {"7", " 7", " 1969"}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[0-9", r"suppress_regex='\[0-9'.*unterminated character set at position 0"),
        ("ab(c", r"at position 2"),
        ("a*", r"leaves some tokens"),
        ("", r"leaves some tokens"),
        ("x{1,99999999999}", r"the repetition number is too large"),
        ("(" * 50_000, r"nested too deeply"),
    ],
)
def test_invalid_suppress_regex_is_an_error(pattern: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_logit_rules(TOKENIZER, timestamps=False, suppress_regex=pattern)


@pytest.mark.parametrize(
    ("suppressed", "timestamps", "options"),
    [
        (range(EOT), False, {}),
        (range(TOKENIZER.n_vocab), True, {}),
        ({*range(EOT)} - {ord(" ")}, False, {}),
        ({*range(EOT)} - {ord("x")}, False, {"suppress_regex": "x"}),
        (range(BEGIN, TOKENIZER.n_vocab), True, {"max_initial_timestamp_s": None}),
        (range(BEGIN, BEGIN + 51), True, {}),
        ([BEGIN], True, {"max_initial_timestamp_s": 0.0}),
    ],
)
def test_tokens_that_leave_nothing_to_pick_are_refused(suppressed: Any, timestamps: bool, options: Any) -> None:
    """Where one text token or timestamp is left, they are suppressed."""
    with pytest.raises(OptionError, match=r"^suppress_tokens=.*leave some text, and a timestamp"):
        make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=suppressed, **options)
    for timestamps, suppressed in ((False, {*range(EOT)} - {TEXT}), (True, {BEGIN})):
        rules = make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=suppressed)
        assert set(rules.suppressed) > suppressed

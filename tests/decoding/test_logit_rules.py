"""Logit rules: the tokens that may follow a prefix, and the bonuses of hotwords, also with a published model."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.backends.host_logits import HostLogits
from harken.decoding import make_logit_rules
from harken.decoding.logit_rules import HOTWORD_BONUS, make_hotword_bias
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, recognizer, recordings
from tiny_models import TOKENIZER

EOT, BEGIN, N = TOKENIZER.eot, TOKENIZER.timestamp_begin, TOKENIZER.n_vocab
TEXT = 97


def tokens(written):
    """Parse text such as "0.00 a 1.00": numbers are timestamps in seconds, letters are text."""
    return [BEGIN + round(float(word) * 50) if "." in word else ord(word) for word in written.split()]


def allowed(rules, prefix):
    """Return a mask of the ids that may follow, by the ranges alone."""
    mask = np.ones(N, bool)
    for start, stop in rules.banned(prefix):
        mask[start:stop] = False
    return mask


def grammar(rules, written):
    """Return whether text and eot may follow, and the range of timestamps: "0.02-30.00", or "" for none."""
    mask = allowed(rules, tokens(written))
    times = np.flatnonzero(mask[BEGIN:]) / 50
    span = f"{times[0]:.2f}-{times[-1]:.2f}" if len(times) else ""
    return bool(mask[TEXT]), bool(mask[EOT]), span


def test_timestamps_at_both_ends_of_the_window():
    """Between them, tests/golden/test_decoding_golden.py compares the rules with those of openai-whisper."""
    rules = make_logit_rules(TOKENIZER, timestamps=True)
    assert grammar(rules, "0.00 0.00") == (True, True, "")
    assert grammar(rules, "0.00 a 30.00") == (False, True, "30.00-30.00")
    assert grammar(rules, "30.00 a") == (True, True, "")  # nothing is later than the end of the window


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
def test_text_does_not_end_where_a_segment_opens_before_the_end_of_speech(prefix, end):
    rules = make_logit_rules(TOKENIZER, timestamps=True)
    banned = rules.banned(tokens(prefix), speech_end=BEGIN + 150)
    assert (not any(start <= EOT < stop for start, stop in banned)) == end
    assert [span for span in banned if span != (EOT, EOT + 1)] == rules.banned(tokens(prefix))


def test_special_tokens_and_those_asked_for_are_suppressed():
    names = ("sot", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech")
    specials = {getattr(TOKENIZER, name) for name in names}
    for asked, more in (((), ()), ((65, 66), (65, 66)), ((-1, 65), (65, *TOKENIZER.non_speech_tokens))):
        for timestamps in (False, True):
            rules = make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=asked)
            never = specials.union(more, [TOKENIZER.no_timestamps] * timestamps)
            assert set(rules.suppressed.tolist()) == never


def test_forced_prefix_comes_first_or_behind_the_first_timestamp_even_if_it_is_suppressed():
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
    lifted = make_logit_rules(TOKENIZER, timestamps=False, forced_prefix=tokens("*"))
    assert {*without.suppressed} - {*lifted.suppressed} == {*tokens("*")}


def test_tokens_matching_suppress_regex_anywhere_are_suppressed():
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
        *(
            (endless, "may never end")
            for endless in ("(?:a+b+)+", "(?:(?:a|bc){24})", "a*a*a*a*b", "(?:(?=a*)b)+")
        ),
    ],
)
def test_invalid_suppress_regex_is_an_error(pattern, message):
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
def test_tokens_that_leave_nothing_to_pick_are_refused(suppressed, timestamps, options):
    """Where one text token or timestamp is left, they are suppressed."""
    with pytest.raises(OptionError, match=r"^suppress_tokens=.*leave some text, and a timestamp"):
        make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=suppressed, **options)
    for timestamps, suppressed in ((False, {*range(EOT)} - {TEXT}), (True, {BEGIN})):
        rules = make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=suppressed)
        assert set(rules.suppressed) > suppressed


# --- hotwords -----------------------------------------------------------------------------------------------

ENGLISH = Tokenizer.builtin(51864)
ENGLISH_BEGIN = ENGLISH.timestamp_begin


def token(text):
    (token_id,) = ENGLISH.encode(text)
    return token_id


def test_memory_is_bounded_by_that_of_the_most_hotwords():
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
        (["Lynde"], [" Ly", ENGLISH_BEGIN + 50], {"nd": 0}),
        (["Lynde"], [ENGLISH_BEGIN], {" Ly": 3 / 6, "Ly": 2 / 5}),
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
def test_share_of_the_full_bonus(hotwords, before, expected):
    bias = make_hotword_bias(ENGLISH, hotwords)
    assert bias
    prefix = [each if isinstance(each, int) else token(each) for each in before]
    found = bias.bonuses(prefix, [token(text) for text in expected])
    assert {text: found.get(token(text), 0.0) / HOTWORD_BONUS for text in expected} == pytest.approx(expected)


def test_hotword_without_case_needs_no_space_before_it():
    vocabulary = Tokenizer.builtin(51865)
    bias, before, spelled = make_hotword_bias(vocabulary, ["凤凰"]), *map(vocabulary.encode, ("看", "凤凰"))
    assert bias
    assert bias.bonuses(before, spelled[:1])
    for index in range(1, len(spelled)):
        assert bias.bonuses([*before, *spelled[:index]], [spelled[index]]) == {spelled[index]: HOTWORD_BONUS}


@pytest.mark.parametrize(
    ("logit", "suppressed", "expected"),
    [(-5.9, [], 0.1), (-7.9, [], -1.9), (-8.1, [], -8.1), (0.0, ["nd"], -np.inf)],
)
def test_bonus_is_for_plausible_tokens_that_are_not_banned(logit, suppressed, expected):
    never = [token(text) for text in suppressed]
    rules = make_logit_rules(ENGLISH, timestamps=False, suppress_tokens=never, hotwords=["Lynde"])
    table = np.full((1, ENGLISH.n_vocab), -30, np.float32)
    table[0, [token("nn"), token("nd")]] = 0.0, logit
    logits = HostLogits(table)
    rules.apply(logits, [[token(" Ly")]])
    assert logits.values[0, token("nd")] == pytest.approx(expected)
    assert ENGLISH.decode(logits.top(1)[0][0].tolist()) == ("nd" if expected > 0 else "nn")


prefixes = st.lists(st.sampled_from([*b" aeimnrtT", 0xC3, 0xA9, BEGIN, BEGIN + 25, BEGIN + 100]), max_size=12)
hotwords = st.lists(st.text("aeinrt é", max_size=8), min_size=1, max_size=4)


@given(words=hotwords, context=prefixes, upto=st.integers(1, 8))
def test_every_token_of_a_hotword_gets_a_bonus_and_none_gets_more(words, context, upto):
    bias = make_hotword_bias(TOKENIZER, words)
    if bias is None:
        assert not "".join(words).split()
        return
    bonuses = bias.bonuses(context, range(TOKENIZER.n_vocab))
    assert set(bonuses) <= set(range(256))
    assert all(0 < bonus <= HOTWORD_BONUS for bonus in bonuses.values())
    for word in words:
        spelled = TOKENIZER.encode(" " + " ".join(word.split()))
        if len(spelled) > upto:
            assert bias.bonuses([*context, *spelled[:upto]], [spelled[upto]]) == {spelled[upto]: HOTWORD_BONUS}


# --- tiny.en ----------------------------------------------------------------------------------------------

NAMES = ("Lynde", "Avonlea", "d'Artagnan", "Nuzhat", "Fuegians", "Cavell", "Steventon", "Merneptah", "Ilyin")
FIRST = {"vad": False, "hallucination_threshold": None, "temperatures": (0.0,)}
"""Options for the first attempt at every window, speech or not."""


def transcribe(audio, *hotwords, **options):
    return recognizer("int8").transcribe(audio, hotwords=hotwords, **FIRST | options).text


@pytest.mark.real
def test_spoken_hotwords_are_transcribed_and_others_change_nothing():
    assert transcribe(EXAMPLE, *NAMES) == transcribe(EXAMPLE)
    (path,) = (path for path in recordings("librispeech-train-clean") if path.name == "103-1240-0000.flac")
    counts = [[transcribe(path, *names).count(name) for name in NAMES[:2]] for names in ((), NAMES)]
    assert counts == [[0, 0], [2, 1]]


@pytest.mark.real
def test_no_hotword_is_transcribed_without_speech():
    time_s = np.arange(6 * SAMPLE_RATE) / SAMPLE_RATE
    hiss = np.random.default_rng(0).standard_normal(len(time_s)) / 20
    for samples in (np.zeros(len(time_s)), hiss, np.sin(2 * np.pi * 100 * time_s) / 10):
        unfiltered = {"no_speech_threshold": None, "compression_ratio_threshold": None}
        text = transcribe(samples.astype(np.float32), *NAMES, **unfiltered)
        assert not [name for name in NAMES if name.lower() in text.lower()]

"""The options of a transcription: their ranges, and the decisions that follow from them."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, nan
from typing import Any, get_args

import numpy as np
import pytest

from harken.decoding import Beam, DecodingResult, Greedy, Hypothesis, Sample
from harken.errors import OptionError
from harken.option_types import Limits
from harken.transcribe import TranscribeOptions

ENDLESS = ["(a+)+$", "(a|aa)*b", "(.*?,){20}x", "a?" * 30 + "a" * 30, ".*" * 9]
REFUSED: dict[str, list[Any]] = {
    "patience": [0.0, nan],
    "length_penalty": [-0.1, 1.5],
    "temperatures": [(), (0.0, 1e-308), (nan,)],
    "clip_timestamps": [
        *((-1.0,), (5.0, 1.0), (nan,), (1.0, inf), (1.0, 1e300)),
        *((3.0, 3.0), (0.0, 0.0), (0.0, 1.0, 2.001, 2.004)),
    ],
    "language": ["klingon", ""],
    "languages": [("en", "xx"), "de"],
    "suppress_regex": ["[", "x{1,99999999999}", "(" * 50_000, *ENDLESS],
    "hotwords": ["Ada", ("x" * 101,), ("fifty characters, as it seems to be" + "x" * 15,) * 1001, ("\udcff",)],
    "vad_threshold": [nan, 1.0],
    "vad_speech_pad_s": [14.5, -0.1],
}
"""Beside what their declared limits refuse, which test_option_values.py tries."""


@pytest.mark.parametrize("name", REFUSED)
def test_error_names_the_option_with_a_refused_value(name: str) -> None:
    for value in REFUSED[name]:
        with pytest.raises(OptionError, match=f"^{name}=") as caught:
            TranscribeOptions(**{name: value})
        assert caught.value.field == name
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "field", "other"),
    [
        ({"vad_min_silence_s": 0.5}, "vad_min_silence_s", "vad_speech_pad_s=0.4"),
        ({"vad_speech_pad_s": 2.0}, "vad_speech_pad_s", "vad_min_silence_s=1"),
        ({"vad_min_silence_s": 3.0, "vad_speech_pad_s": 2.0}, "vad_min_silence_s", "vad_speech_pad_s=2"),
    ],
)
def test_error_about_two_options_names_one_that_was_given_and_the_other(
    options: dict[str, Any], field: str, other: str
) -> None:
    with pytest.raises(OptionError) as caught:
        TranscribeOptions(**options)
    assert caught.value.field == field
    assert other in caught.value.allowed


def test_blank_text_is_none() -> None:
    for blank in ("", " ", "\n", "\t \u3000"):
        options = TranscribeOptions(
            initial_prompt=blank, prefix=blank, hotwords=(blank, " Ada \n Byron", blank)
        )
        assert (options.initial_prompt, options.prefix) == (None, None)
        assert options.hotwords == ("Ada Byron",)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("beam_size", np.int64(3), 3),
        ("patience", 2, 2.0),
        ("vad", np.bool_(False), False),
        ("language", np.str_("de"), "de"),
        ("language", "auto", None),
        ("temperatures", [0, np.float32(0.5)], (0.0, 0.5)),
        ("suppress_tokens", range(3), (0, 1, 2)),
        ("suppress_tokens", np.array([9, 5], np.uint16), (9, 5)),
        ("suppress_tokens", np.array([], int), ()),
        ("clip_timestamps", frozenset({2.0, 1}), (1.0, 2.0)),
        ("hotwords", {"Babbage", "Ada"}, ("Ada", "Babbage")),
    ],
)
def test_numbers_of_numpy_and_any_collections_become_those_that_are_declared(
    name: str, value: Any, taken: Any
) -> None:
    options = TranscribeOptions(**{name: value})
    assert getattr(options, name) == taken
    assert type(getattr(options, name)) is type(taken)
    if isinstance(taken, tuple):
        assert {type(item) for item in getattr(options, name)} == {type(item) for item in taken}
    assert hash(options) == hash(replace(options))


@pytest.mark.parametrize(
    ("limits", "kind", "words"),
    [
        ({"low": 1, "high": 64}, int, "an integer from 1 to 64"),
        ({"low": 1}, int | None, "an integer from 1 on, or none"),
        ({"high": 0}, float, "a number up to 0"),
        ({"above": 0, "high": 100}, float, "a number above 0 and up to 100"),
        ({"above": 0, "below": 1, "noun": "a probability"}, float, "a probability above 0 and below 1"),
        ({"low": 10, "high": 1000, "step": 2, "noun": "an even number"}, int, "an even number from 10 to 1000"),
        ({"choices": ("low", "medium", "high")}, str, "low, medium or high"),
        ({"low": 0, "high": 1e6, "noun": "seconds"}, float, "seconds from 0 to 1e+06"),
    ],
)
def test_limits_are_worded_in_one_way(limits: dict[str, Any], kind: Any, words: str) -> None:
    assert Limits(**limits).words(get_args(kind) or (kind,)) == words


def test_values_that_come_close_to_those_refused_are_accepted() -> None:
    for options in (
        {"clip_timestamps": (0.0, 0.01, 3.0, 4.5, 4.5), "suppress_tokens": (), "length_penalty": 0.0},
        {"suppress_regex": r"^\s*(?:(?:um|uh)m*|[♪♫(\[].*[)\]]|\d{1,3}(?:[.,]\d+)?)$"},
    ):
        accepted = TranscribeOptions(**options)
        assert {name: getattr(accepted, name) for name in options} == options


def test_every_option_has_a_help_sentence() -> None:
    for field in fields(TranscribeOptions):
        assert field.metadata["help"].endswith("."), field.name


@pytest.mark.parametrize(
    ("options", "strategies"),
    [
        ({"temperatures": (0.0,)}, [Greedy()]),
        ({"temperatures": (0.0,), "beam_size": 3, "patience": 2.0}, [Beam(width=3, patience=2.0)]),
        (
            {"temperatures": (0.0, 0.5), "best_of": 2, "length_penalty": 0.6},
            [Greedy(), Sample(temperature=0.5, best_of=2, length_penalty=0.6)],
        ),
        ({"temperatures": (0.3,), "beam_size": 5}, [Sample(temperature=0.3)]),
    ],
)
def test_temperatures_make_the_fallback_schedule(options: dict[str, Any], strategies: list[Any]) -> None:
    assert list(TranscribeOptions(**options).strategies()) == strategies


def test_clip_times_are_converted_to_frames() -> None:
    for clips, frames in (
        ((), [(0, None)]),
        ((2.5,), [(250, None)]),
        ((1.0, 2.0, 3.0), [(100, 200), (300, None)]),
        ((0.0, 1.004, 1.004, 1.006), [(0, 100), (100, 101)]),
    ):
        assert list(TranscribeOptions(clip_timestamps=clips).clips(100)) == frames


def decoded(ratio: float, logprob: float, no_speech: float) -> DecodingResult:
    return DecodingResult(
        hypothesis=Hypothesis(tokens=(), logprobs=(logprob,)),
        text="",
        compression_ratio=ratio,
        no_speech_prob=no_speech,
        temperature=0.0,
    )


GOOD, REPETITIVE, IMPROBABLE = (1.5, -0.3), (2.5, -0.3), (1.5, -1.2)
BOTH = (2.5, -1.2)
SPEECH, SILENCE = 0.1, 0.9
TOO_REPETITIVE, TOO_IMPROBABLE = "compression ratio 2.50 above 2.4", "average log-probability -1.20 below -1.0"

# (compression ratio, logprob), no-speech probability, options, reason for rejection, skipped as silence
JUDGED = [
    (GOOD, SPEECH, {}, None, False),
    (REPETITIVE, SPEECH, {}, TOO_REPETITIVE, False),
    (IMPROBABLE, SPEECH, {}, TOO_IMPROBABLE, False),
    (BOTH, SPEECH, {}, TOO_REPETITIVE, False),
    (GOOD, SILENCE, {}, None, False),
    (REPETITIVE, SILENCE, {}, TOO_REPETITIVE, False),
    (IMPROBABLE, SILENCE, {}, None, True),
    (BOTH, SILENCE, {}, None, True),
    # A value at its threshold is accepted, but does not prove speech.
    ((2.4, -1.0), SPEECH, {}, None, False),
    ((2.4, -1.0), SILENCE, {}, None, True),
    ((2.4, -1.0), 0.6, {}, None, False),
    # Without a threshold.
    (BOTH, SPEECH, {"compression_ratio_threshold": None}, TOO_IMPROBABLE, False),
    (BOTH, SPEECH, {"logprob_threshold": None}, TOO_REPETITIVE, False),
    (BOTH, SPEECH, {"compression_ratio_threshold": None, "logprob_threshold": None}, None, False),
    (IMPROBABLE, SILENCE, {"no_speech_threshold": None}, TOO_IMPROBABLE, False),
    (GOOD, SILENCE, {"logprob_threshold": None}, None, True),
    (REPETITIVE, SILENCE, {"logprob_threshold": None}, TOO_REPETITIVE, True),
]


@pytest.mark.parametrize(("quality", "no_speech", "options", "reason", "silent"), JUDGED)
def test_result_is_rejected_or_skipped_by_the_thresholds(
    quality: tuple[float, float], no_speech: float, options: dict[str, Any], reason: str | None, silent: bool
) -> None:
    checked, result = TranscribeOptions(**options), decoded(*quality, no_speech)
    assert checked.rejection_reason(result) == reason
    assert checked.is_silence(result) is silent

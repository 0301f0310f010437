"""Options: of any value accepted or refused, those of a transcription and what follows from them, typed keywords."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from math import inf, isfinite, nan
from typing import TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken import Recognizer, keywords
from harken.audio.vad import VadOptions
from harken.batch.run import BatchOptions
from harken.decoding import Beam, DecodingResult, Greedy, Hypothesis, Sample
from harken.errors import OptionError
from harken.formats import Layout
from harken.option_types import Limits
from harken.serve.options import ServeOptions
from harken.speakers.diarizer import Diarizer, SpeakerOptions
from harken.streaming import LiveSessions, StreamOptions
from harken.streaming.config import StreamingConfig
from harken.training.options import (
    AdaptDataOptions,
    AdaptOptions,
    DataOptions,
    DistillOptions,
    FineTuneOptions,
    TrainOptions,
)
from harken.transcribe import Callbacks, TranscribeOptions

# --- of any kind and value ----------------------------------------------------------------------------------

OPTIONS = [
    *(TranscribeOptions, StreamOptions, StreamingConfig, Layout, Callbacks, Beam, Sample, VadOptions),
    *(DataOptions, AdaptDataOptions, TrainOptions, DistillOptions, FineTuneOptions, AdaptOptions),
    *(ServeOptions, BatchOptions, SpeakerOptions),
]
FIELDS = [(kind, field.name) for kind in OPTIONS for field in fields(kind)]
REQUIRED = {Sample: {"temperature": 0.5}}


class Odd:
    """An object whose representation has many lines, or fails where there are none."""

    def __init__(self, lines=""):
        self.lines = lines

    def __repr__(self):
        if not self.lines:
            raise RuntimeError("no representation")
        return self.lines


scalars = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(-2, 70), st.floats(), st.floats(-1, 40)),
    *(st.text(), st.text(max_size=3), st.binary(max_size=3)),
    st.sampled_from(["de", "low", "500", "translate", "fast", "streamed", "x{1,99999999999}", "(", "9" * 5000]),
    st.sampled_from(["x" * 100_000, "\udcff", " ", "\n", 10**400, 10**5000, -(10**5000), 1e308, 5e-324]),
    st.sampled_from(
        [np.int64(2), np.uint8(1), np.float32(0.5), np.float64("nan"), np.bool_(True), np.str_("de")]
    ),
    st.sampled_from([np.longdouble(1), np.array(3), np.zeros((40, 40)), np.datetime64("2020"), complex(1, 2)]),
    st.sampled_from(
        [object(), object, Odd(), Odd("one\ntwo\u2028three" * 1000), len, ..., range(3), {1}, {"a": 1}]
    ),
)
values = st.one_of(scalars, st.lists(scalars, max_size=4), st.lists(scalars, max_size=4).map(tuple))


def is_of(value, hint):
    """Return whether a value is of a declared type: exactly, so that it is written as such everywhere."""
    if get_origin(hint) is Union or "|" in str(hint):
        return any(is_of(value, kind) for kind in get_args(hint))
    if get_origin(hint) is tuple:
        return type(value) is tuple and all(is_of(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is Callable or str(hint).startswith("collections.abc.Callable"):
        return callable(value)
    return type(value) is hint and (hint is not float or isfinite(value))


def test_limits_are_accepted_and_what_lies_beyond_is_refused_in_their_words():
    for kind, name in FIELDS:
        (limits,) = (field.metadata.get("limits") or Limits() for field in fields(kind) if field.name == name)
        hint = get_type_hints(kind)[name]
        allowed = limits.words(get_args(hint) or (hint,))
        refused = [limits.above, limits.below, *([f"no {name}", 2] if limits.choices else [])]
        refused += [bound + step for bound, step in ((limits.low, -1), (limits.high, 1)) if bound is not None]
        for value in [value for value in refused if value is not None]:
            _, error = made(kind, {name: (value,) if get_origin(hint) is tuple else value})
            assert error is not None, (kind, name, value)
            assert (error.field, error.allowed) == (name, allowed)
        for bound in {limits.low, limits.high} - {None}:
            _, error = made(kind, {name: bound})
            assert error is None or error.allowed != allowed, "another option may forbid it"


@settings(max_examples=75)
@given(data=st.data())
@pytest.mark.parametrize("kind", OPTIONS)
def test_values_are_accepted_in_their_types_or_one_is_refused_by_its_name(kind, data):
    """Their defaults are of the declared types, too."""
    hints = get_type_hints(kind)
    given_values = data.draw(st.dictionaries(st.sampled_from([field.name for field in fields(kind)]), values))
    options, error = made(kind, given_values)
    assert error or all(is_of(getattr(options, name), hints[name]) for name in given_values)
    assert all(field.default is MISSING or is_of(field.default, hints[field.name]) for field in fields(kind))


def made(kind, given_values):
    """Return options of some values, or the error that names one of them in a line; any other fails the test."""
    refused = None
    try:
        options = kind(**REQUIRED.get(kind, {}) | given_values)
    except OptionError as error:
        refused = error
    if refused:
        assert refused.field in given_values
        assert len(str(refused).splitlines()) == 1
        assert len(str(refused)) < 1000
        return None, refused
    assert isinstance(hash(options), int)
    assert replace(options) == options
    return options, None


@given(name=st.text(), value=values, allowed=st.text())
def test_an_error_is_one_short_line_whatever_it_is_about(name, value, allowed):
    error = OptionError(name, value, allowed * 10_000)
    assert len(str(error).splitlines()) <= 1
    assert len(str(error)) < 1000
    assert error.value is value


# --- of a transcription -------------------------------------------------------------------------------------

ENDLESS = ["(a+)+$", "(?:a+b+)+", "(?:(?:a|bc){24})", "(a|aa)*b", "(.*?,){20}x", "a?" * 30 + "a" * 30, ".*" * 9]
REFUSED = {
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
"""Beside what their declared limits refuse."""


@pytest.mark.parametrize("name", REFUSED)
def test_error_names_the_option_with_a_refused_value(name):
    for value in REFUSED[name]:
        _, error = made(TranscribeOptions, {name: value})
        assert error is not None, value
        assert str(error).startswith(f"{name}=")


@pytest.mark.parametrize(
    ("options", "field", "other"),
    [
        ({"vad_min_silence_s": 0.5}, "vad_min_silence_s", "vad_speech_pad_s=0.4"),
        ({"vad_speech_pad_s": 2.0}, "vad_speech_pad_s", "vad_min_silence_s=1"),
        ({"vad_min_silence_s": 3.0, "vad_speech_pad_s": 2.0}, "vad_min_silence_s", "vad_speech_pad_s=2"),
    ],
)
def test_error_about_two_options_names_one_that_was_given_and_the_other(options, field, other):
    _, error = made(TranscribeOptions, options)
    assert error is not None
    assert error.field == field
    assert other in error.allowed


def test_blank_text_is_none():
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
def test_numbers_of_numpy_and_any_collections_become_those_that_are_declared(name, value, taken):
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
def test_limits_are_worded_in_one_way(limits, kind, words):
    assert Limits(**limits).words(get_args(kind) or (kind,)) == words


def test_values_that_come_close_to_those_refused_are_accepted_and_every_option_has_a_help_sentence():
    for options in (
        {"clip_timestamps": (0.0, 0.01, 3.0, 4.5, 4.5), "suppress_tokens": (), "length_penalty": 0.0},
        {"suppress_regex": r"^\s*(?:(?:um|uh)m*|(?:7|8a){1,4}|[♪♫(\[].*[)\]]|\d{1,3}(?:[.,]\d+)?)$"},
    ):
        accepted = TranscribeOptions(**options)
        assert {name: getattr(accepted, name) for name in options} == options
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
def test_temperatures_make_the_fallback_schedule(options, strategies):
    assert list(TranscribeOptions(**options).strategies()) == strategies


def test_clip_times_are_converted_to_frames():
    for clips, frames in (
        *(((), [(0, None)]), ((2.5,), [(250, None)]), ((1.0, 2.0, 3.0), [(100, 200), (300, None)])),
        ((0.0, 1.004, 1.004, 1.006), [(0, 100), (100, 101)]),
    ):
        assert TranscribeOptions(clip_timestamps=clips).clips == frames


GOOD, REPETITIVE, IMPROBABLE, BOTH = (1.5, -0.3), (2.5, -0.3), (1.5, -1.2), (2.5, -1.2)
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
def test_result_is_rejected_or_skipped_by_the_thresholds(quality, no_speech, options, reason, silent):
    ratio, logprob = quality
    result = DecodingResult(
        hypothesis=Hypothesis(tokens=(), logprobs=(logprob,)),
        text="",
        compression_ratio=ratio,
        no_speech_prob=no_speech,
        temperature=0.0,
    )
    checked = TranscribeOptions(**options)
    assert checked.rejection_reason(result) == reason
    assert checked.is_silence(result) is silent


# --- as keywords --------------------------------------------------------------------------------------------


def types_of(*dataclasses):
    """Type of each field as a keyword, by its name: lists are taken too, and whole milliseconds of a delay."""
    given_as = {
        tuple[str, ...]: tuple[str, ...] | list[str],
        tuple[int, ...]: Sequence[int],
        tuple[float, ...]: Sequence[float],
    }
    hints = [
        (field.name, get_type_hints(dataclass)[field.name])
        for dataclass in dataclasses
        for field in fields(dataclass)
    ]
    return {name: str | int if name == "delay" else given_as.get(hint, hint) for name, hint in hints}


def test_keywords_have_the_names_and_types_of_the_options():
    assert get_type_hints(keywords.TranscribeKeywords) == types_of(TranscribeOptions)
    assert get_type_hints(keywords.CallbackKeywords) == types_of(Callbacks)
    assert get_type_hints(keywords.StreamKeywords) == types_of(TranscribeOptions, StreamOptions)
    expected = types_of(TranscribeOptions, Callbacks) | {"diarizer": Diarizer | None, "draft": str | None}
    assert get_type_hints(keywords.RecordingKeywords) == expected
    # Only several recordings take callbacks, texts and journals, by position.
    extra = (
        get_type_hints(keywords.RecordingsKeywords).keys() - get_type_hints(keywords.RecordingKeywords).keys()
    )
    assert extra == {"callbacks", "drafts", "journals"}


def test_names_of_streams_keep_their_type():
    """A mapping with keys of a wider type would take no ``dict[str, ...]``."""
    hints = get_type_hints(LiveSessions.feed)
    (name, _), (same, _) = get_args(hints["samples"]), get_args(hints["return"])
    assert isinstance(name, TypeVar)
    assert name is same


def test_every_public_call_with_options_is_typed():
    calls = [getattr(Recognizer, name) for name in vars(Recognizer) if not name.startswith("_")]
    open_ended = [
        parameter.annotation
        for call in calls
        if callable(call)
        for parameter in inspect.signature(call).parameters.values()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD
    ]
    assert len(open_ended) == 7
    assert all(annotation.startswith("Unpack[") for annotation in open_ended)

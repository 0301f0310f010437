"""Options of any value: accepted in their declared type, or refused by their name in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from math import isfinite
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.audio.vad import VadOptions
from harken.batch.run import BatchOptions
from harken.decoding import Beam, Sample
from harken.errors import OptionError
from harken.formats import Layout
from harken.option_types import Limits
from harken.serve.options import ServeOptions
from harken.speakers.diarizer import SpeakerOptions
from harken.streaming import StreamOptions
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

OPTIONS = [
    *(TranscribeOptions, StreamOptions, StreamingConfig, Layout, Callbacks, Beam, Sample, VadOptions),
    *(DataOptions, AdaptDataOptions, TrainOptions, DistillOptions, FineTuneOptions, AdaptOptions),
    *(ServeOptions, BatchOptions, SpeakerOptions),
]
FIELDS = [(kind, field.name) for kind in OPTIONS for field in fields(kind)]
REQUIRED: dict[type, dict[str, Any]] = {Sample: {"temperature": 0.5}}


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class TwoLines:
    def __repr__(self) -> str:
        return "one\ntwo\u2028three" * 1000


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 70),
    st.floats(),
    st.floats(-1, 40),
    st.text(),
    st.text(max_size=3),
    st.sampled_from(["de", "low", "500", "translate", "fast", "streamed", "x{1,99999999999}", "(", "9" * 5000]),
    st.sampled_from(["x" * 100_000, "\udcff", " ", "\n", 10**400, 10**5000, -(10**5000), 1e308, 5e-324]),
    st.binary(max_size=3),
    st.sampled_from(
        [np.int64(2), np.uint8(1), np.float32(0.5), np.float64("nan"), np.bool_(True), np.str_("de")]
    ),
    st.sampled_from([np.longdouble(1), np.array(3), np.zeros((40, 40)), np.datetime64("2020"), complex(1, 2)]),
    st.sampled_from([object(), object, Unprintable(), TwoLines(), len, ..., range(3), {1}, {"a": 1}]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=4), st.lists(scalars, max_size=4).map(tuple))


def is_of(value: Any, hint: Any) -> bool:
    """Return whether a value is of a declared type: exactly, so that it is written as such everywhere."""
    if get_origin(hint) is Union or "|" in str(hint):
        return any(is_of(value, kind) for kind in get_args(hint))
    if get_origin(hint) is tuple:
        return type(value) is tuple and all(is_of(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is Callable or str(hint).startswith("collections.abc.Callable"):
        return callable(value)
    return type(value) is hint and (hint is not float or isfinite(value))


@pytest.mark.parametrize(("kind", "name"), FIELDS)
@settings(max_examples=6)
@given(value=values)
def test_value_is_accepted_in_its_type_or_refused_by_its_name(kind: type[Any], name: str, value: Any) -> None:
    options, error = made(kind, {name: value})
    if error is not None:
        assert error.field == name
        assert_short(error)
        return
    assert is_of(getattr(options, name), get_type_hints(kind)[name])
    assert isinstance(hash(options), int)
    assert replace(options) == options


def test_limits_are_accepted_and_what_lies_beyond_is_refused_in_their_words() -> None:
    for kind, name in FIELDS:
        (limits,) = (field.metadata.get("limits") or Limits() for field in fields(kind) if field.name == name)
        hint = get_type_hints(kind)[name]
        allowed = limits.words(get_args(hint) or (hint,))
        refused = [limits.above, limits.below, *([f"no {name}"] if limits.choices else [])]
        refused += [bound + step for bound, step in ((limits.low, -1), (limits.high, 1)) if bound is not None]
        for value in [value for value in refused if value is not None]:
            _, error = made(kind, {name: (value,) if get_origin(hint) is tuple else value})
            assert error is not None, (kind, name, value)
            assert (error.field, error.allowed) == (name, allowed)
        for bound in (limits.low, limits.high):
            _, error = made(kind, {name: bound})
            assert error is None or error.allowed != allowed, "another option may forbid it"


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("kind", OPTIONS)
def test_several_values_are_accepted_or_one_is_refused_by_its_name(
    kind: type[Any], data: st.DataObject
) -> None:
    given_values = data.draw(st.dictionaries(st.sampled_from([field.name for field in fields(kind)]), values))
    _, error = made(kind, given_values)
    if error is not None:
        assert error.field in given_values
        assert_short(error)


def made(kind: type[Any], given_values: dict[str, Any]) -> tuple[Any, OptionError | None]:
    """Return options of some values, or the error; any other error fails the test."""
    try:
        return kind(**REQUIRED.get(kind, {}) | given_values), None
    except OptionError as error:
        return None, error


def assert_short(error: OptionError) -> None:
    message = str(error)
    assert len(message.splitlines()) == 1
    assert len(message) < 1000


def test_every_default_is_of_its_declared_type() -> None:
    for kind in OPTIONS:
        hints = get_type_hints(kind)
        for field in fields(kind):
            assert field.default is MISSING or is_of(field.default, hints[field.name]), field.name


@given(name=st.text(), value=values, allowed=st.text())
def test_an_error_is_one_short_line_whatever_it_is_about(name: str, value: Any, allowed: str) -> None:
    error = OptionError(name, value, allowed * 10_000)
    assert len(str(error).splitlines()) <= 1
    assert len(str(error)) < 1000
    assert error.value is value

"""The options: fields of frozen dataclasses, declared here, held to their types and limits, and refused by their name.

A field declared by `option` carries its default, its help, its heading on the command line, and what is allowed.
`check` is the one place that compares a value with that, and `Limits` the one that words it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from harken.errors import OptionError

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The values that are allowed, or the items of a tuple."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    step: int = 1  # the value is a multiple of it
    choices: tuple[str, ...] = ()  # the only values
    noun: str = ""  # what the number is, in the words of the message; by default "an integer" or "a number"
    allowed: str = ""  # all that is allowed, in words, where the limits alone do not say it well

    def allow(self, value: Any) -> bool:
        """Return whether a single value lies within the limits."""
        return not (
            (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
            or (self.step != 1 and value % self.step)
            or (self.choices and value not in self.choices)
        )

    def words(self, kinds: Sequence[Any]) -> str:
        """Return what is allowed, for a field of these types."""
        if self.choices:
            *others, last = self.choices
            words = f"{', '.join(others)} or {last}"
        else:
            noun = self.noun or ("an integer" if int in kinds else "a number")
            between = self.low is not None and self.high is not None
            bounds = {
                "from {}": self.low,
                "above {}": self.above,
                ("to {}" if between else "up to {}"): self.high,
                "below {}": self.below,
            }
            parts = [form.format(_number(bound)) for form, bound in bounds.items() if bound is not None]
            if self.low is not None and len(parts) == 1:
                parts.append("on")
            words = f"{noun} {' '.join(parts) if between or 'on' in parts else ' and '.join(parts)}"
        return self.allowed or (f"{words}, or none" if NoneType in kinds else words)


def option(
    default: Any, help: str = "", *, section: str = "Output", from_file: bool = False, **limits: Any
) -> Any:
    """Declare an option: its default, its help sentence, its heading on the command line, and its `Limits`.

    One that is `from_file` is a tuple of texts, and on the command line the lines of a file.
    """
    metadata = {"help": help, "section": section, "from_file": from_file, "limits": Limits(**limits)}
    return field(default=default, metadata=metadata)


def option_like(options_class: type[Any], name: str, default: Any) -> Any:
    """Declare an option of a base class once more, with another default."""
    (inherited,) = (field for field in fields(options_class) if field.name == name)
    return field(default=default, metadata=inherited.metadata)


def options_from(options_class: type[OptionsT], values: Mapping[str, Any]) -> OptionsT:
    """Return options from a mapping that may hold further values; a field that it does not hold has its default."""
    names = [field.name for field in fields(cast(Any, options_class)) if field.name in values]
    return options_class(**{name: values[name] for name in names})


def check(options: Any) -> None:
    """Hold every field of a frozen dataclass to its declared type and limits; its ``__post_init__`` calls this first.

    Lists, ranges, sets and arrays of one dimension become tuples, numbers of numpy those of Python, and integers floats
    where a number is declared.

    Raises
    ------
    OptionError
        If a value is of another type, not finite, not valid Unicode, or outside its limits. It names the field.
    """
    options_class: type = type(options)
    for name, (default, hint, limits) in _declarations(options_class).items():
        value = getattr(options, name)
        if value is default:  # most are, and every window of a recording may have options of its own
            continue
        kinds = get_args(hint) or (hint,)
        try:
            checked = checked_value(name, value, hint)
        except OptionError:
            if limits is None or not limits.choices:
                raise
            raise OptionError(name, value, limits.words(kinds)) from None
        if checked is not value:
            object.__setattr__(options, name, checked)
        for item in checked if isinstance(checked, tuple) else (checked,):
            if limits is not None and item is not None and not limits.allow(item):
                raise OptionError(name, item, limits.words(kinds))


def checked_value(name: str, value: Any, hint: Any) -> Any:
    """Return the value of an option in its declared type.

    That may be a scalar, a tuple of them, a path, a callable, a class, or a union of these.

    Raises
    ------
    OptionError
        If the value is of another type.
    """
    is_union = get_origin(hint) in (Union, UnionType)
    kinds = get_args(hint) if is_union else (hint,)
    if value is None and NoneType in kinds:
        return None
    if any(get_origin(kind) is os.PathLike for kind in kinds):
        kinds = tuple(kind for kind in kinds if kind is not str)  # a path may be a text
    refusals = []
    for kind in kinds:
        if kind is not NoneType:
            try:
                return _converted(value, kind)
            except _Refusal as refusal:
                refusals.append(str(refusal))
    allowed = " or ".join(dict.fromkeys(refusals))
    raise OptionError(name, value, f"{allowed}, or none" if NoneType in kinds else allowed)


def contradiction(options: Any, **allowed: str) -> OptionError:
    """Return the error for options that contradict each other: about the first that has not its default, or the last.

    The names say what is allowed of each option, given the others.
    """
    defaults = {field.name: field.default for field in fields(options)}
    given = (name for name in allowed if getattr(options, name) != defaults[name])
    name = next(given, [*allowed][-1])
    return OptionError(name, getattr(options, name), allowed[name])


class _Refusal(Exception):
    """A value is not of a type; the message says what is allowed."""


@cache
def _declarations(options_class: type[Any]) -> dict[str, tuple[Any, Any, Limits | None]]:
    """Return the default and the type of each field, and its limits if it has some."""
    hints = get_type_hints(options_class)
    return {
        field.name: (field.default, hints[field.name], field.metadata.get("limits"))
        for field in fields(options_class)
    }


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _converted(value: Any, kind: Any) -> Any:
    """Return a value as one of a type."""
    origin = get_origin(kind) or kind
    if origin in _CONVERSIONS:
        return _CONVERSIONS[origin](value)
    if origin is tuple:
        return tuple(_items(value, get_args(kind)[0]))
    if not isinstance(value, origin):
        raise _Refusal(f"of type {origin.__name__}")
    return value


def _items(value: Any, kind: Any) -> Iterator[Any]:
    """Yield the items of a tuple, list, range or array as those of a type, and those of a set in their order."""
    try:
        for item in _as_sequence(value):
            yield _converted(item, kind)
    except _Refusal:
        raise _Refusal(f"a tuple or list of {_PLURALS[kind]}") from None


def _as_sequence(value: Any) -> Sequence[Any]:
    if isinstance(value, tuple | list | range):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value)
    if isinstance(value, set | frozenset):
        with suppress(TypeError):  # items that have no order are not of one type
            return sorted(value)
    raise _Refusal


def _as_bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _Refusal("True or False")
    return bool(value)


def _as_int(value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise _Refusal("an integer")
    return int(value)


def _as_float(value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an integer
            if isfinite(number := float(value)):
                return number
    raise _Refusal("a finite number")


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refusal("a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Refusal("a text in valid Unicode") from None
    return str.__str__(value)


def _as_path(value: Any) -> Any:
    """Return a path as it is; unlike a text it may hold bytes that are not UTF-8."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or "\0" in path:
        raise _Refusal("a path")
    return value


def _as_function(value: Any) -> Any:
    if not callable(value):
        raise _Refusal("a function")
    return value


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    str: _as_text,
    os.PathLike: _as_path,
    Callable: _as_function,
}
_PLURALS = {
    int: "integers",
    float: "finite numbers",
    str: "texts in valid Unicode",
    os.PathLike[str]: "paths",
}

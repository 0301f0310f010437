"""Types of the values on the command line, which refuse what Python's conversions and click's own types let through."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import click


class NumberRange(click.FloatRange):
    """A range of numbers; nan and infinity lie in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a number of the range {self._describe_range()}.", param, ctx)
        return number


class Text(click.types.StringParamType):
    """A text; one that the terminal passed in another encoding than UTF-8 is refused.

    Parameters
    ----------
    empty : bool
        Allow the empty text.
    """

    def __init__(self, *, empty: bool = True) -> None:
        self.empty = empty

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        try:
            text = checked_text(super().convert(value, param, ctx))
        except click.BadParameter as error:
            self.fail(error.message, param, ctx)
        if not (text or self.empty):
            self.fail("it is empty.", param, ctx)
        return text


class FilePath(click.Path):
    """A path of a file or folder, which is not empty; opening it says whether it can be read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"readable": False, **settings})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("it is empty, and names no file.", param, ctx)
        return super().convert(value, param, ctx)


def checked_text(value: str) -> str:
    """Return a text that can be written as UTF-8.

    Raises
    ------
    click.BadParameter
        If bytes that are no text have become surrogates in it (see PEP 383).
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{abridged(value)} is not UTF-8 text") from None
    return value


def checked_number(value: float, text: str) -> float:
    """Return a number that is not nan.

    Raises
    ------
    click.BadParameter
        If it is.
    """
    if isnan(value):
        raise click.BadParameter(f"{text!r} is not a number")
    return value


def abridged(value: object, length: int = 60) -> str:
    """Return a value as it would be typed, on one line, and without its middle if it is long."""
    match value:
        case str():
            shown = repr(value)
        case list() | tuple():
            texts = any(isinstance(item, str) for item in value)
            joined = ",".join(map(str, value))
            shown = repr(joined) if texts or not joined else joined
        case None:
            shown = "none"
        case _:
            shown = str(value)
    half = (length - 3) // 2
    return shown if len(shown) <= length else f"{shown[:half]}...{shown[-half:]}"

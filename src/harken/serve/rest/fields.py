"""The fields of forms, as data: what each means, how it is read, and the option of a transcription that it sets.

The description of the API is made of the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harken.errors import OptionError
from harken.serve.errors import request_error
from harken.serve.rest.forms import Form, bad_field, missing_field
from harken.text import from_language_tag, from_language_tags
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form or a parameter of a query: what it means, and how it is read.

    Parameters
    ----------
    meaning : str
    read : callable
        Returns its value by the form and its name, or raises `RequestError` or `OptionError`.
    schema : mapping
        JSON schema of its value.
    option : str, optional
        Option of a transcription that its value sets, unless that is None.
    required : bool
    """

    meaning: str
    read: Callable[[Form, str], Any]
    schema: Mapping[str, Any]
    option: str | None = None
    required: bool = False


Kind = tuple[Callable[[Form, str], Any], dict[str, Any]]
"""How fields of a kind are read, and their schema."""
STRINGS = {"type": "array", "items": {"type": "string"}}
TEXT: Kind = (Form.text, {"type": "string"})
TEXTS: Kind = (Form.texts, STRINGS)
FLAG: Kind = (Form.flag, {"type": "boolean", "default": False})
NUMBER: Kind = (Form.number, {"type": "number"})
WHOLE: Kind = (Form.whole, {"type": "integer"})
LANGUAGE: Kind = (lambda form, name: from_language_tag(form.text(name), option=name), TEXT[1])
LANGUAGES: Kind = (lambda form, name: from_language_tags(form.texts(name), option=name), STRINGS)


def choice(*allowed: str, strict: bool = True) -> Kind:
    """Return the kind of fields whose value is one of some words, by default the first.

    Parameters
    ----------
    *allowed : str
    strict : bool
        False to take any other word for the default.
    """

    def read(form: Form, name: str) -> str:
        value = form.text(name) or allowed[0]
        if value in allowed:
            return value
        if not strict:
            return allowed[0]
        raise bad_field(name, value, f"one of {', '.join(allowed)}")

    return read, {"type": "string", "enum": [*allowed], "default": allowed[0]}


def read_fields(form: Form, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the values of fields by their names; others are ignored, as clients add some of their own.

    Raises
    ------
    RequestError
        If one is missing that is required, or has a value that is not allowed.
    """
    for name, field in fields.items():
        if field.required and form.text(name) is None:
            raise missing_field(name)
    try:
        return {name: field.read(form, name) for name, field in fields.items()}
    except OptionError as error:
        raise request_error(error) from error


def field_names(fields: Mapping[str, Field]) -> dict[str, str]:
    """Return the names of fields by the options that they set."""
    return {field.option: name for name, field in fields.items() if field.option}


def transcribe_options(given: Mapping[str, Any], names: Mapping[str, str], **others: Any) -> TranscribeOptions:
    """Return the options that the values of fields set, and others.

    Parameters
    ----------
    given : mapping
        Values by the names of their fields.
    names : mapping
        Names of fields by the options that they set.
    **others
        Further options, which count more.

    Raises
    ------
    RequestError
        If a value is not allowed; it names the field.
    """
    options = {option: given[name] for option, name in names.items() if given.get(name) is not None}
    try:
        return TranscribeOptions(**options | others)
    except OptionError as error:
        raise request_error(error, names) from error

"""Typed keyword arguments of the public calls, held to the dataclasses that they stand for."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

from harken import Recognizer
from harken.keywords import (
    CallbackKeywords,
    RecordingKeywords,
    RecordingsKeywords,
    StreamKeywords,
    TranscribeKeywords,
)
from harken.speakers.diarizer import Diarizer
from harken.streaming import StreamOptions
from harken.transcribe import Callbacks, TranscribeOptions


def types_of(*dataclasses: type) -> dict[str, Any]:
    """Type of each field, by its name."""
    return {
        field.name: get_type_hints(dataclass)[field.name]
        for dataclass in dataclasses
        for field in fields(dataclass)
    }


def test_keywords_have_the_names_and_types_of_the_options() -> None:
    assert get_type_hints(TranscribeKeywords) == types_of(TranscribeOptions)
    assert get_type_hints(CallbackKeywords) == types_of(Callbacks)
    assert get_type_hints(StreamKeywords) == types_of(TranscribeOptions, StreamOptions)
    expected = types_of(TranscribeOptions, Callbacks) | {"diarizer": Diarizer | None, "draft": str | None}
    assert get_type_hints(RecordingKeywords) == expected


def test_only_several_recordings_take_callbacks_texts_and_journals_by_position() -> None:
    extra = get_type_hints(RecordingsKeywords).keys() - get_type_hints(RecordingKeywords).keys()
    assert extra == {"callbacks", "drafts", "journals"}


def test_every_public_call_with_options_is_typed() -> None:
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

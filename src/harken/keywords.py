"""Options as keyword arguments: what `transcribe`, `stream` and the others take by name, typed for editors and mypy.

The dataclasses of options say what each means, and hold lists as tuples; a test holds names and types together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, TypeVar

from harken.decoding import Observer
from harken.errors import OptionError
from harken.option_types import checked_value
from harken.speakers.diarizer import Diarizer
from harken.transcribe.options import Callbacks, ProgressCallback, WindowEndCallback, WindowStartCallback

OptionsT = TypeVar("OptionsT")
Texts = tuple[str, ...] | list[str]  # no sequence, of which a single text is one too


class TranscribeKeywords(TypedDict, total=False):
    """Fields of `harken.transcribe.TranscribeOptions`."""

    language: str | None
    languages: Texts
    language_threshold: float
    language_windows: int
    multilingual: bool
    task: str
    beam_size: int | None
    patience: float
    length_penalty: float | None
    best_of: int
    temperatures: Sequence[float]
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    timestamps: bool
    max_initial_timestamp_s: float | None
    clip_timestamps: Sequence[float]
    fidelity: str
    suppress_tokens: Sequence[int]
    suppress_blank: bool
    suppress_regex: str | None
    batch_size: int | None
    seed: int
    condition_on_previous_text: bool
    prompt_reset_temperature: float
    initial_prompt: str | None
    carry_initial_prompt: bool
    prefix: str | None
    hotwords: Texts
    word_timestamps: bool
    prepend_punctuations: str
    append_punctuations: str
    replace: Texts
    channels: str
    vad: bool
    vad_threshold: float
    vad_min_speech_s: float
    vad_min_silence_s: float
    vad_speech_pad_s: float
    hallucination_threshold: float | None
    fill_gaps: bool


class CallbackKeywords(TypedDict, total=False):
    """Fields of `harken.transcribe.Callbacks`."""

    on_progress: ProgressCallback
    on_token: Observer
    on_window_start: WindowStartCallback
    on_window_end: WindowEndCallback
    is_cancelled: Callable[[], bool]


class StreamKeywords(TranscribeKeywords, total=False):
    """Options of a transcription, and fields of `harken.streaming.StreamOptions`."""

    delay: str | int
    best_effort: bool
    finals: str
    adaptive: bool
    window_frames: int | None
    hop_frames: int | None
    history_frames: int | None
    commit_delay_frames: int | None
    local_agreement: int | None
    sentence_pause_s: float
    pause_s: float


class RecordingKeywords(TranscribeKeywords, CallbackKeywords, total=False):
    """Options and callbacks of one transcription, and what tells its speakers apart."""

    diarizer: Diarizer | None
    draft: str | None


class RecordingsKeywords(RecordingKeywords, total=False):
    """Options and callbacks of several transcriptions; the mappings give some of them their own, by position."""

    callbacks: Mapping[int, Callbacks]
    drafts: Mapping[int, str]
    journals: Mapping[int, str | os.PathLike[str]]


def options_or_default(name: str, options: OptionsT | None, options_class: type[OptionsT]) -> OptionsT:
    """Return options if they are of their class, the defaults if there are none."""
    given: OptionsT | None = checked_value(name, options, options_class | None)
    return options_class() if given is None else given


def check_by_position(
    name: str, given: Any, n_recordings: int, kind: type | tuple[type, ...]
) -> Mapping[int, Any]:
    """Return what is given for some recordings by position, if there are such recordings."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    whole = isinstance(given, Mapping) and all(
        index in range(n_recordings) and isinstance(value, kinds) for index, value in given.items()
    )
    if not whole:
        expected = " or ".join(each.__name__ for each in kinds)
        raise OptionError(name, given, f"a mapping of positions from 0 to {n_recordings - 1} to {expected}")
    checked: Mapping[int, Any] = given
    return checked


def pop_fields(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields of a dataclass from keyword arguments, and return them."""
    return {field.name: given.pop(field.name) for field in fields(kind) if field.name in given}

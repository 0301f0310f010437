"""The fields of OpenAI's transcriptions and translations, as options of a transcription."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from harken.audio import stream_audio
from harken.contract import Floats
from harken.errors import AudioError, OptionError
from harken.formats import RULES, Layout
from harken.serve.errors import RequestError, object_in, request_error
from harken.serve.rest.forms import Form, bad_field, parse_number
from harken.speakers.diarizer import Diarizer
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

RESPONSE_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
DIARIZED = "diarized_json"
"""The response format that names the speakers; not of translations."""
GRANULARITIES = ("word", "segment")
MAX_TEMPERATURE = 1
"""Of the temperatures that harken allows, those that OpenAI's service allows."""
MAX_SILENCE_MS, MAX_PADDING_MS = 3_600_000, 14_000
LOGPROBS, EVENTS = "logprobs", "harken.events"
FIELDS = {
    "initial_prompt": "prompt",
    "hotwords": "keywords",
    "temperatures": "temperature",
    "vad_threshold": "chunking_strategy[threshold]",
    "vad_min_silence_s": "chunking_strategy[silence_duration_ms]",
    "vad_speech_pad_s": "chunking_strategy[prefix_padding_ms]",
}
"""Fields of the form, by the options that they set under another name."""
DEFAULTS = TranscribeOptions()
NAMES, REFERENCES = "known_speaker_names", "known_speaker_references"
MAX_VOICES = 4
MAX_NAME_LENGTH = 100
MIN_SAMPLE_S, MAX_SAMPLE_S = 2.0, 10.0
"""Shorter and longer samples are refused, as OpenAI's service does."""
_TOLERANCE_S = 0.1
"""Compressed audio is a little longer than what it was made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest:
    """A client's request for a transcription.

    Parameters
    ----------
    model : str
    options : TranscribeOptions
    response_format : str
        One of `RESPONSE_FORMATS`, or `DIARIZED`.
    stream : bool
        True for events while it is transcribed.
    words, segments : bool
        True to list them in the response.
    logprobs : bool
        True to add the log-probabilities of the words.
    events : bool
        True for harken's own events in the stream: progress, segments and the whole transcript.
    layout : Layout
        The style of srt and vtt.
    known_speakers : mapping
        Recordings of voices, as files in memory, by the names of the speakers.
    """

    model: str
    options: TranscribeOptions
    response_format: str
    stream: bool
    words: bool
    segments: bool
    logprobs: bool
    events: bool
    layout: Layout
    known_speakers: Mapping[str, bytes]

    @property
    def diarized(self) -> bool:
        """True if speakers are to be told apart."""
        return self.response_format == DIARIZED


def parse_transcription_form(form: Form, task: str) -> TranscriptionRequest:
    """Read the fields; those that are unknown are ignored, as clients add some of their own.

    Raises
    ------
    RequestError
        If the model is missing, or a value is not allowed.
    """
    if not (model := form.text("model")):
        raise RequestError("model is missing; it is required", code="missing_required_parameter", param="model")
    granularities, include = form.texts("timestamp_granularities"), form.texts("include")
    for granularity in granularities:
        if granularity not in GRANULARITIES:
            raise bad_field("timestamp_granularities", granularity, " or ".join(GRANULARITIES))
    response_format = form.choice("response_format", _response_formats(task), "json")
    known_speakers = _known_speakers(form)
    if known_speakers and response_format != DIARIZED:
        allowed = f"{DIARIZED}, which known_speaker_names need"
        raise bad_field("response_format", response_format, allowed, code="unsupported_value")
    words = "word" in granularities
    layout = _layout(form)
    needs_words = words or LOGPROBS in include or response_format == DIARIZED or layout.needs_words
    return TranscriptionRequest(
        model=model,
        options=_options(form, task, word_timestamps=needs_words),
        response_format=response_format,
        stream=form.flag("stream"),
        words=words,
        segments=not words or "segment" in granularities,
        logprobs=LOGPROBS in include,
        events=EVENTS in include,
        layout=layout,
        known_speakers=known_speakers,
    )


def form_error(error: BaseException) -> RequestError:
    """Return what a client is told about an error, in the names of the fields."""
    return request_error(error, FIELDS)


def _response_formats(task: str) -> tuple[str, ...]:
    return (*RESPONSE_FORMATS, DIARIZED) if task == "transcribe" else RESPONSE_FORMATS


def _options(form: Form, task: str, *, word_timestamps: bool) -> TranscribeOptions:
    try:
        return TranscribeOptions(
            task=task,
            language=form.text("language"),
            languages=form.texts("languages"),
            initial_prompt=form.text("prompt"),
            hotwords=form.texts("keywords"),
            replace=form.texts("replace"),
            channels=form.text("channels") or DEFAULTS.channels,
            temperatures=_temperatures(form),
            word_timestamps=word_timestamps,
            **_speech_options(form),
        )
    except OptionError as error:
        raise form_error(error) from error


def _layout(form: Form) -> Layout:
    """Return the style of subtitles, and the rules that are given one by one."""
    rules = {name: form.number(name) for name in RULES}
    whole = {name: int(value) if value and value.is_integer() else value for name, value in rules.items()}
    try:
        return Layout(subtitle_style=form.text("subtitle_style"), **whole)  # type: ignore[arg-type]
    except OptionError as error:
        raise form_error(error) from error


def _temperatures(form: Form) -> tuple[float, ...]:
    """Return the fallback schedule from a temperature on."""
    first = form.number("temperature") or 0.0
    if not 0 <= first <= MAX_TEMPERATURE:
        raise bad_field("temperature", f"{first:g}", f"a number from 0 to {MAX_TEMPERATURE}")
    return (first, *(higher for higher in DEFAULTS.temperatures if higher > first))


def _speech_options(form: Form) -> dict[str, Any]:
    """Return the options of voice activity detection that the chunking strategy sets."""
    name = "chunking_strategy"
    given: Mapping[str, Any] = form.entries(name) or _parse_strategy(name, form.text(name) or "auto")
    if given.get("type") != "server_vad":
        if given.get("type") == "auto":
            return {}
        raise bad_field(f"{name}[type]", str(given.get("type")), "server_vad")

    def setting(key: str, default: float, highest: float) -> float:
        if given.get(key) is None:
            return default
        value = parse_number(f"{name}[{key}]", str(given[key]))
        if not 0 <= value <= highest:
            raise bad_field(f"{name}[{key}]", str(given[key]), f"a number from 0 to {highest:g}")
        return value

    silence_s = setting("silence_duration_ms", 1000 * DEFAULTS.vad_min_silence_s, MAX_SILENCE_MS) / 1000
    padding_s = setting("prefix_padding_ms", 1000 * DEFAULTS.vad_speech_pad_s, MAX_PADDING_MS) / 1000
    return {
        "vad_threshold": setting("threshold", DEFAULTS.vad_threshold, 1),
        "vad_min_silence_s": silence_s,
        "vad_speech_pad_s": min(padding_s, silence_s / 2),  # it may fill the silence from both sides
    }


def _parse_strategy(name: str, text: str) -> Mapping[str, Any]:
    if text == "auto":
        return {"type": "auto"}
    return object_in(text, bad_field(name, text, 'auto, or an object such as {"type": "server_vad"}'))


def _known_speakers(form: Form) -> Mapping[str, bytes]:
    """Return the samples of known voices by their names, as files in memory."""
    names, references = form.texts(NAMES), form.texts(REFERENCES)
    if len(names) > MAX_VOICES:
        raise bad_field(NAMES, str(len(names)), f"a list of up to {MAX_VOICES}")
    if len(names) != len(references):
        raise bad_field(REFERENCES, str(len(references)), f"a list of {len(names)}, one for each name")
    for name, following in pairwise(sorted(names)):
        if name == following:
            raise bad_field(NAMES, name, "each name once")
    for name in names:
        if len(name) > MAX_NAME_LENGTH:
            raise bad_field(NAMES, name, f"a name of up to {MAX_NAME_LENGTH} characters")
    return dict(zip(names, map(_decode_data_url, references), strict=True))


def read_voices(references: Mapping[str, bytes]) -> dict[str, Floats]:
    """Decode samples of known voices.

    Raises
    ------
    RequestError
        If one cannot be read as audio, or is too short or too long.
    """
    return {name: _read_voice(name, data) for name, data in references.items()}


def with_voices(diarizer: Diarizer, voices: Mapping[str, Floats]) -> Diarizer:
    """Return a diarizer that recognises voices.

    Raises
    ------
    RequestError
        If a sample cannot be used, such as one without speech.
    """
    try:
        return diarizer.with_voices(voices) if voices else diarizer
    except (AudioError, OptionError) as error:
        raise _unusable(str(error)) from error


def _decode_data_url(url: str) -> bytes:
    head, comma, data = url.strip().partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise bad_field(REFERENCES, url, "data URLs in base64, such as data:audio/wav;base64,UklGR...")
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise bad_field(REFERENCES, url, "data URLs whose data is base64") from None


def _read_voice(name: str, data: bytes) -> Floats:
    try:
        samples = np.concatenate([*_bounded(stream_audio(io.BytesIO(data)))])
    except AudioError as error:
        raise _unusable(f"the sample of {name!r}: {error}") from error
    seconds = len(samples) / SAMPLE_RATE
    if not MIN_SAMPLE_S <= seconds <= MAX_SAMPLE_S + _TOLERANCE_S:
        length = f"{seconds:g} s long" if seconds <= MAX_SAMPLE_S else f"longer than {MAX_SAMPLE_S:g} s"
        raise _unusable(
            f"the sample of {name!r} is {length}; allowed are {MIN_SAMPLE_S:g} s to {MAX_SAMPLE_S:g} s"
        )
    return samples


def _bounded(blocks: Iterator[Floats]) -> Iterator[Floats]:
    """Yield blocks until they are longer than a sample may be."""
    n_samples = 0
    for block in blocks:
        yield block
        n_samples += len(block)
        if n_samples > (MAX_SAMPLE_S + _TOLERANCE_S) * SAMPLE_RATE:
            return


def _unusable(message: str) -> RequestError:
    return RequestError(f"{REFERENCES}: {message}", code="invalid_audio", param=REFERENCES)

"""The fields of OpenAI's transcriptions and translations, as options of a transcription."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harken.errors import OptionError
from harken.serve.errors import RequestError, request_error
from harken.serve.rest.forms import Form, bad_field, parse_number
from harken.serve.rest.known_speakers import parse_known_speakers
from harken.transcribe import TranscribeOptions

RESPONSE_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
DIARIZED = "diarized_json"
"""The response format that names the speakers; not of translations."""
GRANULARITIES = ("word", "segment")
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
    known_speakers = parse_known_speakers(form)
    if known_speakers and response_format != DIARIZED:
        allowed = f"{DIARIZED}, which known_speaker_names need"
        raise bad_field("response_format", response_format, allowed, code="unsupported_value")
    words = "word" in granularities
    needs_words = words or LOGPROBS in include or response_format == DIARIZED
    return TranscriptionRequest(
        model=model,
        options=_options(form, task, word_timestamps=needs_words),
        response_format=response_format,
        stream=form.flag("stream"),
        words=words,
        segments=not words or "segment" in granularities,
        logprobs=LOGPROBS in include,
        events=EVENTS in include,
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
            temperatures=_temperatures(form.number("temperature") or 0.0),
            word_timestamps=word_timestamps,
            **_speech_options(form),
        )
    except OptionError as error:
        raise form_error(error) from error


def _temperatures(first: float) -> tuple[float, ...]:
    """Return the fallback schedule from a temperature on."""
    return (first, *(higher for higher in DEFAULTS.temperatures if higher > first))


def _speech_options(form: Form) -> dict[str, Any]:
    """Return the options of voice activity detection that the chunking strategy sets."""
    name = "chunking_strategy"
    given: Mapping[str, Any] = form.entries(name) or _parse_strategy(name, form.text(name) or "auto")
    if given.get("type") != "server_vad":
        if given.get("type") == "auto":
            return {}
        raise bad_field(f"{name}[type]", str(given.get("type")), "server_vad")

    def setting(key: str, default: float) -> float:
        return default if given.get(key) is None else parse_number(f"{name}[{key}]", str(given[key]))

    silence_s = setting("silence_duration_ms", 1000 * DEFAULTS.vad_min_silence_s) / 1000
    padding_s = setting("prefix_padding_ms", 1000 * DEFAULTS.vad_speech_pad_s) / 1000
    return {
        "vad_threshold": setting("threshold", DEFAULTS.vad_threshold),
        "vad_min_silence_s": silence_s,
        "vad_speech_pad_s": max(0.0, min(padding_s, silence_s / 2)),  # it may fill the silence from both sides
    }


def _parse_strategy(name: str, text: str) -> Mapping[str, Any]:
    if text == "auto":
        return {"type": "auto"}
    try:
        strategy = json.loads(text)
    except (ValueError, RecursionError):
        strategy = None
    if not isinstance(strategy, dict):
        raise bad_field(name, text, 'auto, or an object such as {"type": "server_vad"}')
    return strategy

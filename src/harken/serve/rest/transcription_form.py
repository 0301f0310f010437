"""The fields of OpenAI's transcriptions and translations, as options of a transcription."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from harken.audio import stream_audio
from harken.contract import Floats
from harken.errors import AudioError, OptionError
from harken.formats import RULES, STYLES, Layout
from harken.serve.errors import RequestError, object_in
from harken.serve.live.audio import AudioFormat
from harken.serve.rest.forms import (
    FLAG,
    LANGUAGE,
    LANGUAGES,
    NUMBER,
    TEXT,
    TEXTS,
    Field,
    Form,
    bad_field,
    choice,
    parse_number,
    read_fields,
    transcribe_options,
)
from harken.speakers.diarizer import Diarizer, SpeakerOptions
from harken.transcribe import TranscribeOptions
from harken.transcribe.options import CHANNELS
from harken.types import SAMPLE_RATE

RESPONSE_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
DIARIZED = "diarized_json"
"""The response format that names the speakers; not of translations."""
GRANULARITIES = ("word", "segment")
MAX_TEMPERATURE = 1
"""Of the temperatures that harken allows, those that OpenAI's service allows."""
MAX_SILENCE_MS, MAX_PADDING_MS = 3_600_000, 14_000
LOGPROBS, EVENTS = "logprobs", "harken.events"
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
    """A client's request for a transcription."""

    options: TranscribeOptions
    response_format: str = "json"  # as the protocol of the client names it
    model: str = ""  # empty for the server's default
    stream: bool = False  # true for events while it is transcribed
    # Whether to list them in the response.
    words: bool = False
    segments: bool = True
    logprobs: bool = False  # true to add the log-probabilities of the words
    # True for harken's own events in the stream: progress, segments and the whole transcript.
    events: bool = False
    layout: Layout = field(default_factory=Layout)  # the style of srt and vtt
    max_segment_chars: int | None = None  # of the text of a segment, which is cut between words
    diarized: bool = False  # true to tell speakers apart
    # How many there are, as far as that is known.
    speakers: SpeakerOptions = field(default_factory=SpeakerOptions)
    # Recordings of voices, as files in memory, by the names of the speakers.
    known_speakers: Mapping[str, bytes] = field(default_factory=dict)
    language_only: bool = False  # true to find the language of the first half a minute, and no text
    raw: AudioFormat | None = None  # the format of a recording without a header
    file_name: str = ""  # name that the client gives the recording


def parse_transcription_form(form: Form, task: str) -> TranscriptionRequest:
    """Read the fields; those that are unknown are ignored, as clients add some of their own.

    Raises
    ------
    RequestError, OptionError
        If the model is missing, or a value is not allowed.
    """
    given = read_fields(form, FIELDS[task])
    granularities, include, response_format = (
        given[name] for name in ("timestamp_granularities", "include", "response_format")
    )
    for granularity in granularities:
        if granularity not in GRANULARITIES:
            raise bad_field("timestamp_granularities", granularity, " or ".join(GRANULARITIES))
    known_speakers = _known_speakers(given.get(NAMES, ()), given.get(REFERENCES, ()))
    if known_speakers and response_format != DIARIZED:
        allowed = f"{DIARIZED}, which known_speaker_names need"
        raise bad_field("response_format", response_format, allowed, code="unsupported_value")
    words, layout = "word" in granularities, _layout(given)
    options = transcribe_options(
        given,
        FIELDS[task],
        task=task,
        word_timestamps=words or LOGPROBS in include or response_format == DIARIZED or layout.needs_words,
        **given["chunking_strategy"],
    )
    return TranscriptionRequest(
        options=options,
        response_format=response_format,
        model=given["model"],
        stream=given["stream"],
        words=words,
        segments=not words or "segment" in granularities,
        logprobs=LOGPROBS in include,
        events=EVENTS in include,
        layout=layout,
        diarized=response_format == DIARIZED,
        known_speakers=known_speakers,
    )


def _layout(given: Mapping[str, Any]) -> Layout:
    """Return the style of subtitles, and the rules that are given one by one."""
    rules: dict[str, Any] = {name: given[name] for name in RULES}
    whole = {name: int(value) for name, value in rules.items() if value is not None and value.is_integer()}
    return Layout(subtitle_style=given["subtitle_style"], **rules | whole)


def _temperatures(form: Form, name: str) -> tuple[float, ...]:
    """Return the fallback schedule from a temperature on."""
    first = form.number(name) or 0.0
    if not 0 <= first <= MAX_TEMPERATURE:
        raise bad_field(name, f"{first:g}", f"a number from 0 to {MAX_TEMPERATURE}")
    return (first, *(higher for higher in DEFAULTS.temperatures if higher > first))


def _speech_options(form: Form, name: str) -> dict[str, Any]:
    """Return the options of voice activity detection that the chunking strategy sets."""
    text, given = form.text(name) or "auto", form.entries(name)
    if not given:
        problem = bad_field(name, text, 'auto, or an object such as {"type": "server_vad"}')
        given = {"type": "auto"} if text == "auto" else object_in(text, problem)
    if given.get("type") == "auto":
        return {}
    if given.get("type") != "server_vad":
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


def _known_speakers(names: Sequence[str], references: Sequence[str]) -> Mapping[str, bytes]:
    """Return the samples of known voices by their names, as files in memory."""
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


_TEMPERATURE = {"type": "number", "minimum": 0, "maximum": MAX_TEMPERATURE, "default": 0}
_STRATEGY = {"anyOf": [{"const": "auto"}, {"type": "object"}], "default": "auto"}
_TRANSLATION_FIELDS = {
    "model": Field(
        "Name of a model of this server, an alias, or a name of OpenAI, such as whisper-1.",
        *TEXT,
        required=True,
    ),
    "language": Field("Language spoken; detected if it is left out.", *LANGUAGE, option="language"),
    "languages": Field("The only candidates where the language is detected.", *LANGUAGES, option="languages"),
    "prompt": Field("Text before the recording: names, spelling, style.", *TEXT, option="initial_prompt"),
    "keywords": Field("Words to expect, such as names.", *TEXTS, option="hotwords"),
    "temperature": Field(
        "Temperature to try first; 0 falls back to higher ones.",
        _temperatures,
        _TEMPERATURE,
        option="temperatures",
    ),
    "replace": Field("Lines wrong = right: names and spellings to replace.", *TEXTS, option="replace"),
    "channels": Field("Whether each channel is transcribed apart.", *choice(*CHANNELS), option="channels"),
    "subtitle_style": Field(
        "Rules of the cues of srt and vtt; the fields after it set single ones.",
        Form.text,
        {"type": "string", "enum": [*STYLES]},
    ),
    **{name: Field("A rule of cues.", *NUMBER) for name in RULES},
    "response_format": Field("Format of the answer.", *choice(*RESPONSE_FORMATS)),
    "timestamp_granularities": Field(
        "Times to list in verbose_json: segment, word.",
        Form.texts,
        {"type": "array", "items": {"enum": [*GRANULARITIES]}},
    ),
    "include": Field(f"More to tell: {LOGPROBS} of words, {EVENTS} in a stream.", *TEXTS),
    "stream": Field("Send the text as it is decoded, as server-sent events.", *FLAG),
    "chunking_strategy": Field(
        'Detection of speech: auto, or {"type": "server_vad"} with threshold, prefix_padding_ms, silence_duration_ms.',
        _speech_options,
        _STRATEGY,
    ),
}
FIELDS: Mapping[str, Mapping[str, Field]] = {
    "translate": _TRANSLATION_FIELDS,
    "transcribe": _TRANSLATION_FIELDS
    | {
        "response_format": Field(
            f"Format of the answer; {DIARIZED} names the speakers.", *choice(*RESPONSE_FORMATS, DIARIZED)
        ),
        NAMES: Field(f"Names of up to {MAX_VOICES} speakers, in {DIARIZED}.", *TEXTS),
        REFERENCES: Field("A recording of each, as a data URL.", *TEXTS),
    },
}
"""Fields of the form, by task."""
SPEECH_NAMES = {
    "vad_threshold": "chunking_strategy[threshold]",
    "vad_min_silence_s": "chunking_strategy[silence_duration_ms]",
    "vad_speech_pad_s": "chunking_strategy[prefix_padding_ms]",
}
"""Parts of a field, by the options that they set."""


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
        return diarizer.with_voices(voices)
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
    file = io.BytesIO(data)
    file.name = f"the sample of {name!r}"
    try:
        samples = np.concatenate([*_bounded(stream_audio(file))])
    except AudioError as error:
        raise _unusable(str(error)) from error
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

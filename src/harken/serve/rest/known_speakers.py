"""Samples of known voices, as fields of a form: data URLs of a few seconds of speech each."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from harken.audio import stream_audio
from harken.contract import Floats
from harken.errors import AudioError, OptionError
from harken.serve.errors import RequestError
from harken.serve.rest.forms import Form, bad_field
from harken.speakers.diarizer import Diarizer
from harken.types import SAMPLE_RATE

NAMES, REFERENCES = "known_speaker_names", "known_speaker_references"
MAX_VOICES = 4
MAX_NAME_LENGTH = 100
MIN_SAMPLE_S, MAX_SAMPLE_S = 2.0, 10.0
"""Shorter and longer samples are refused, as OpenAI's service does."""
_TOLERANCE_S = 0.1
"""Compressed audio is a little longer than what it was made of."""


def parse_known_speakers(form: Form) -> Mapping[str, bytes]:
    """Return the samples of known voices by their names, as files in memory.

    Raises
    ------
    RequestError
        If there are too many, not one for each name, a name is too long or given twice, or one is no data URL.
    """
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

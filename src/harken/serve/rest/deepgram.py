"""Deepgram's API: what its clients ask for in the address, and the results that they read.

Texts have the punctuation and capitals of the model, whether `punctuate` asks for them or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from harken.decoding.logit_rules import fitting_hotwords
from harken.results import Segment, Word
from harken.serve.errors import RequestError
from harken.serve.rest.forms import Form
from harken.text import from_language_tag
from harken.transcribe import TranscribeOptions
from harken.version import __version__

FAMILIES = ("nova", "enhanced", "flux", "whisper-")
"""Beginnings of the names of Deepgram's own models, all of which mean the server's first."""


def model_name(form: Form) -> str | None:
    """Return the model that is asked for; None for the server's first."""
    name = form.text("model")
    return None if name is None or name.startswith(FAMILIES) else name


def listen_options(form: Form) -> TranscribeOptions:
    """Return the options of a transcription.

    Raises
    ------
    OptionError
        If a language is unknown.
    """
    keywords = (
        re.sub(r":-?[\d.]+$", "", keyword) for keyword in form.texts("keywords")
    )  # without their weights
    return TranscribeOptions(
        language=from_language_tag(form.text("language")),
        hotwords=fitting_hotwords((*form.texts("keyterm"), *keywords)),
        word_timestamps=True,
    )


def alternative_json(text: str, words: Sequence[Word]) -> dict[str, Any]:
    """Return a text with its words."""
    confidence = sum(word.probability for word in words) / max(1, len(words))
    return {
        "transcript": text.strip(),
        "confidence": round(confidence, 6),
        "words": [word_json(word) for word in words],
    }


def word_json(word: Word) -> dict[str, Any]:
    """Return a word: bare, and as it is written."""
    written = word.text.strip()
    return {
        "word": re.sub(r"^\W+|\W+$", "", written).lower() or written,
        "start": round(word.start_s, 3),
        "end": round(word.end_s, 3),
        "confidence": round(word.probability, 6),
        "punctuated_word": written,
    }


def languages_of(segments: Sequence[Segment]) -> list[str]:
    """Return the languages of segments, in the order of their first one."""
    return [*dict.fromkeys(segment.language for segment in segments if segment.language)]


def metadata_json(request_id: str, sha256: str, duration_s: float) -> dict[str, Any]:
    """Return what is told about a request at its end."""
    return {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "sha256": sha256,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": round(duration_s, 3),
        "channels": 1,
    }


def model_uuid(model: str) -> str:
    """Return the number of a model."""
    return str(uuid5(NAMESPACE_DNS, model))


def model_info(model: str) -> dict[str, str]:
    """Return what is told about a model."""
    return {"name": model, "version": __version__, "arch": "whisper"}


def error_json(problem: RequestError, request_id: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"err_code": problem.code or "Bad Request", "err_msg": str(problem), "request_id": request_id}

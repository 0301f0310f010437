"""The description of the server for clients of Wyoming, and the options that they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from harken.decoding.logit_rules import MAX_HOTWORD_CHARS, MAX_HOTWORDS_CHARS
from harken.errors import OptionError
from harken.option_types import checked_value
from harken.serve.service import Service
from harken.text import LANGUAGES, to_language_code
from harken.transcribe import TranscribeOptions
from harken.version import __version__

ATTRIBUTION = MappingProxyType({"name": "OpenAI", "url": "https://github.com/openai/whisper"})
ENGLISH_ONLY_SUFFIX = ".en"
LANGUAGE_ALIASES = MappingProxyType({"nb": "no", "fil": "tl", "iw": "he", "in": "id"})
"""Codes of Home Assistant, by which Whisper does not know a language."""
ANY_LANGUAGE = ("", "*", "auto")


def info(service: Service) -> dict[str, Any]:
    """Return the data of the event ``info``.

    A client is to say where the audio stops: within it, pauses end utterances, but never the request. So
    ``requires_external_vad`` is true.
    """
    program = {
        "name": "harken",
        "attribution": {"name": "harken", "url": "https://pypi.org/project/harken"},
        "installed": True,
        "description": "Whisper speech recognition",
        "version": __version__,
        "models": [_model(service, id) for id in service.models.ids],
        "supports_transcript_streaming": True,
        "requires_external_vad": True,
        "prefers_auto_gain_enabled": False,
        "prefers_noise_reduction_enabled": False,
    }
    return {"asr": [program]}


def transcribe_options(data: Mapping[str, Any]) -> TranscribeOptions:
    """Return the options of a ``transcribe`` event.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """
    names = checked_value("transcript_names", data.get("transcript_names") or (), tuple[str, ...])
    terms = checked_value("transcript_terms", data.get("transcript_terms") or (), tuple[str, ...])
    return TranscribeOptions(language=_language(data), hotwords=_fitting((*names, *terms)))


def _model(service: Service, id: str) -> dict[str, Any]:
    return {
        "name": id,
        "attribution": dict(ATTRIBUTION),
        "installed": True,
        "description": f"Whisper {id}",
        "version": None,
        "languages": _languages(service, id),
    }


def _languages(service: Service, id: str) -> list[str]:
    """Return the languages of a model; of one that is not in memory by its name, as clients wait a second only."""
    for model in service.models.loaded:
        if model.id == id:
            tokenizer = model.recognizer.tokenizer
            return [*tokenizer.language_tokens] if tokenizer.multilingual else ["en"]
    return ["en"] if id.endswith(ENGLISH_ONLY_SUFFIX) else [*LANGUAGES]


def _language(data: Mapping[str, Any]) -> str | None:
    """Return the code of a language such as ``de``, ``de-CH`` or ``de_CH``; None if it is to be detected."""
    given = checked_value("language", data.get("language"), str | None)
    if given is None or given.strip().lower() in ANY_LANGUAGE:
        return None
    code = given.strip().lower().replace("_", "-").partition("-")[0]
    try:
        return to_language_code(LANGUAGE_ALIASES.get(code, code))
    except OptionError as error:
        raise OptionError("language", given, error.allowed) from None


def _fitting(words: Iterable[str]) -> tuple[str, ...]:
    """Return the first words that fit into the hotwords: names of a whole home may be more."""
    fitting, left = [], MAX_HOTWORDS_CHARS
    for word in words:
        if len(word) <= min(left, MAX_HOTWORD_CHARS):
            fitting.append(word)
            left -= len(word)
    return tuple(fitting)

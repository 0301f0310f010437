"""harken: Whisper speech recognition that is fast on a CPU and exact.

>>> import harken
>>> harken.load("tiny.en").transcribe("talk.mp3").text
"""

from __future__ import annotations

from harken.version import __version__

TYPE_CHECKING = False  # as in typing, whose import takes long beside this module
if TYPE_CHECKING:
    from typing import Any

    from harken.api import Recognizer, load, load_diarizer
    from harken.errors import HarkenError
    from harken.results import Segment, Transcript, Word
    from harken.transcribe import TranscribeOptions
    from harken.transcription import Transcription

__all__ = [
    "HarkenError",
    "Recognizer",
    "Segment",
    "TranscribeOptions",
    "Transcript",
    "Transcription",
    "Word",
    "__version__",
    "load",
    "load_diarizer",
]

_MODULES = {
    "HarkenError": "errors",
    "Recognizer": "api",
    "Segment": "results",
    "TranscribeOptions": "transcribe",
    "Transcript": "results",
    "Transcription": "transcription",
    "Word": "results",
    "load": "api",
    "load_diarizer": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module such as ``harken.formats``, when it is first used.

    So the command can handle signals before it imports anything that takes long.
    """
    from importlib import import_module
    from importlib.util import find_spec

    if name in _MODULES:
        value = getattr(import_module(f"harken.{_MODULES[name]}"), name)
    elif not name.startswith("_") and find_spec(f"harken.{name}"):
        value = import_module(f"harken.{name}")
    else:
        raise AttributeError(f"module 'harken' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})

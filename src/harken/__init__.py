"""harken: Whisper speech recognition that is fast on a CPU and exact.

>>> import harken
>>> harken.load("tiny.en").transcribe("talk.mp3").text
"""

from harken.api import Recognizer, load
from harken.errors import HarkenError
from harken.results import Segment, Transcript, Word
from harken.transcribe import TranscribeOptions
from harken.transcription import Transcription

__version__ = "0.1.0"

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
]

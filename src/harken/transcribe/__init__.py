"""Offline transcription: chunking of recordings, decoding of their windows in batches, segments and words."""

from harken.transcribe.forced_alignment import force_align
from harken.transcribe.options import Callbacks, TranscribeOptions
from harken.transcribe.recording import RecordingTranscriber
from harken.transcribe.scheduler import Scheduler
from harken.transcribe.window_decoder import WindowDecoder

__all__ = [
    "Callbacks",
    "RecordingTranscriber",
    "Scheduler",
    "TranscribeOptions",
    "WindowDecoder",
    "force_align",
]

"""From a stream of samples to segments: windows, the fallback ladder, the sliding loop, batches."""

from harken.transcribe.batch import Scheduler
from harken.transcribe.hearing import WindowDecoder
from harken.transcribe.hooks import Callbacks
from harken.transcribe.known import force_align
from harken.transcribe.longform import RecordingTranscriber
from harken.transcribe.options import TranscribeOptions

__all__ = [
    "Callbacks",
    "RecordingTranscriber",
    "Scheduler",
    "TranscribeOptions",
    "WindowDecoder",
    "force_align",
]

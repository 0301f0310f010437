"""From a stream of samples to segments: windows, the fallback ladder, the sliding loop, batches."""

from harken.transcribe.batch import Batch
from harken.transcribe.hearing import Hearing
from harken.transcribe.hooks import Hooks
from harken.transcribe.known import find_words
from harken.transcribe.longform import LongForm
from harken.transcribe.options import TranscribeOptions

__all__ = ["Batch", "Hearing", "Hooks", "LongForm", "TranscribeOptions", "find_words"]

"""From a stream of samples to segments: windows, the fallback ladder, the sliding loop."""

from harken.transcribe.longform import Hooks, LongForm
from harken.transcribe.options import TranscribeOptions

__all__ = ["Hooks", "LongForm", "TranscribeOptions"]

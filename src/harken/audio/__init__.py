"""Sound in, log-mel frames out; nothing here knows a model. PyAV is imported when a file is opened."""

from harken.audio.io import AudioSource, duration, load, stream
from harken.audio.mel import SILENCE, LogMel, log_mel, mel_filters, normalize, pad_or_trim

__all__ = [
    "SILENCE",
    "AudioSource",
    "LogMel",
    "duration",
    "load",
    "log_mel",
    "mel_filters",
    "normalize",
    "pad_or_trim",
    "stream",
]

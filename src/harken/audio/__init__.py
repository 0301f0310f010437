"""Sound in, log-mel frames out; nothing here knows a model. PyAV is imported when a file is opened."""

from harken.audio.io import AudioSource, audio_duration, load_audio, stream_audio
from harken.audio.mel import LOG_MEL_FLOOR, LogMel, log_mel, mel_filters, normalize, pad_or_trim

__all__ = [
    "LOG_MEL_FLOOR",
    "AudioSource",
    "LogMel",
    "audio_duration",
    "load_audio",
    "log_mel",
    "mel_filters",
    "normalize",
    "pad_or_trim",
    "stream_audio",
]

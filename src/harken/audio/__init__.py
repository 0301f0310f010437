"""Audio front end: decoding, resampling and log-mel features. PyAV is imported only when a file is opened."""

from harken.audio.io import AudioSource, audio_duration, load_audio, stream_audio, stream_channels
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
    "stream_channels",
]

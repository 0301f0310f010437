"""Live transcription: samples in, events out; sessions never wait and never read the time of day."""

from harken.streaming.config import StreamingConfig, StreamOptions
from harken.streaming.events import (
    Event,
    FinalSegment,
    Interim,
    LoadChanged,
    SpeakersChanged,
    SpeechEnded,
    SpeechStarted,
)
from harken.streaming.session import LiveSession, LiveSessions

__all__ = [
    "Event",
    "FinalSegment",
    "Interim",
    "LiveSession",
    "LiveSessions",
    "LoadChanged",
    "SpeakersChanged",
    "SpeechEnded",
    "SpeechStarted",
    "StreamOptions",
    "StreamingConfig",
]

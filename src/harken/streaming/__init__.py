"""Live sessions: samples in, events out; nothing here waits or knows the time."""

from harken.streaming.config import StreamingConfig, StreamOptions
from harken.streaming.events import Event, FinalSegment, Interim, LoadChanged, SpeechEnded, SpeechStarted
from harken.streaming.session import LiveSession, LiveSessions

__all__ = [
    "Event",
    "FinalSegment",
    "Interim",
    "LiveSession",
    "LiveSessions",
    "LoadChanged",
    "SpeechEnded",
    "SpeechStarted",
    "StreamOptions",
    "StreamingConfig",
]

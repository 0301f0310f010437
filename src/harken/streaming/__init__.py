"""Live sessions: samples in, events out; nothing here waits or knows the time."""

from harken.streaming.events import Committed, Event, Interim, LoadChanged, SpeechEnded, SpeechStarted
from harken.streaming.options import StreamOptions
from harken.streaming.session import LiveSession, LiveSessions
from harken.streaming.setting import Setting

__all__ = [
    "Committed",
    "Event",
    "Interim",
    "LiveSession",
    "LiveSessions",
    "LoadChanged",
    "Setting",
    "SpeechEnded",
    "SpeechStarted",
    "StreamOptions",
]

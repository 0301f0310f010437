"""Events of a live session as JSON: the lines of `harken listen --json`, and the messages of the server."""

from __future__ import annotations

from typing import Any

from harken.formats import as_json
from harken.streaming.events import (
    Event,
    FinalSegment,
    Interim,
    LoadChanged,
    SpeakersChanged,
    SpeechEnded,
    SpeechStarted,
)
from harken.types import SAMPLE_RATE

_EVENT_NAMES: dict[type, str] = {
    SpeechStarted: "speech_started",
    Interim: "interim",
    FinalSegment: "final_segment",
    SpeakersChanged: "speakers_changed",
    SpeechEnded: "speech_ended",
    LoadChanged: "load_changed",
}


def event_fields(event: Event) -> dict[str, Any]:
    """Return its name as ``event``, ``emitted_s`` for `emitted_samples`, and its other fields, for `json.dumps`."""
    fields: dict[str, Any] = as_json(event)
    times = {
        "audio_s": fields.pop("audio_s"),
        "emitted_s": fields.pop("emitted_samples") / SAMPLE_RATE,
        "compute_s": round(fields.pop("compute_s"), 6),
    }
    return {"event": _EVENT_NAMES[type(event)]} | times | fields

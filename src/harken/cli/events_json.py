"""Events of a live session as JSON, one object a line."""

from __future__ import annotations

import json

from harken.formats import as_json
from harken.streaming import Event, FinalSegment, Interim, LoadChanged, SpeechEnded, SpeechStarted
from harken.types import SAMPLE_RATE

_EVENT_NAMES: dict[type, str] = {
    SpeechStarted: "speech_started",
    Interim: "interim",
    FinalSegment: "final_segment",
    SpeechEnded: "speech_ended",
    LoadChanged: "load_changed",
}


def live_event_json(event: Event) -> str:
    """One line: ``event`` says which it is; then come its fields, ``emitted_s`` for `emitted_samples`."""
    fields = as_json(event)
    times = {
        "audio_s": fields.pop("audio_s"),
        "emitted_s": fields.pop("emitted_samples") / SAMPLE_RATE,
        "compute_s": round(fields.pop("compute_s"), 6),
    }
    return json.dumps({"event": _EVENT_NAMES[type(event)]} | times | fields, ensure_ascii=False) + "\n"

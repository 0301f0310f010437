"""Events of a live session as JSON, one object a line."""

from __future__ import annotations

import json

from harken.formats import as_json
from harken.streaming import Committed, Event, Interim, LoadChanged, SpeechEnded, SpeechStarted
from harken.types import SAMPLE_RATE

_NAMES: dict[type, str] = {
    SpeechStarted: "speech_started",
    Interim: "interim",
    Committed: "committed",
    SpeechEnded: "speech_ended",
    LoadChanged: "load_changed",
}


def json_line(event: Event) -> str:
    """One line: ``event`` says which it is; then come its fields, ``emitted_s`` for `emitted_samples`."""
    told = as_json(event)
    times = {
        "audio_s": told.pop("audio_s"),
        "emitted_s": told.pop("emitted_samples") / SAMPLE_RATE,
        "compute_s": round(told.pop("compute_s"), 6),
    }
    return json.dumps({"event": _NAMES[type(event)]} | times | told, ensure_ascii=False) + "\n"

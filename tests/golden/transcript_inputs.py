"""What `record_transcripts.py` gives to openai-whisper, and `test_transcripts.py` to harken."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harken.audio import load
from harken.contract import Floats
from harken.types import SAMPLE_RATE

EXAMPLE = Path(__file__).parents[2] / "examples" / "jfk.flac"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One transcription, at temperature 0.

    Parameters
    ----------
    recording : {"jfk", "long"}
    options : dict
        As harken names them.
    """

    recording: str
    options: dict[str, Any] = field(default_factory=dict)


BEAM = {"beam_size": 5}
ALONE = {"condition_on_previous_text": False}
CASES = {
    "jfk": Case(recording="jfk"),
    "jfk, beam": Case(recording="jfk", options=BEAM),
    "jfk, initial prompt": Case(
        recording="jfk", options={"initial_prompt": "a speech in lower case no commas"}
    ),
    "long": Case(recording="long"),
    "long, beam": Case(recording="long", options=BEAM),
    "long, each window alone": Case(recording="long", options=ALONE),
    "long, each window alone, beam": Case(recording="long", options=BEAM | ALONE),
    "long, no timestamps": Case(recording="long", options={"timestamps": False}),
    "long, clips": Case(recording="long", options={"clip_timestamps": (3.0, 9.5, 14.0, 20.0, 33.0)}),
}


def samples(recording: str) -> Floats:
    """Mono at 16 kHz: the example as it is, or 50 s made of it, at several volumes with gaps between."""
    speech = load(EXAMPLE)
    if recording == "jfk":
        return speech
    # Of integers alone, so that it is the same on every machine.
    hum = (np.arange(8 * SAMPLE_RATE) * 7919 % 65 - 32).astype(np.float32) / 32768
    parts = [
        speech,
        hum[: 2 * SAMPLE_RATE],
        speech / 4,
        hum,
        speech[: 7 * SAMPLE_RATE],
        hum[:8000],
        speech / 16,
    ]
    return np.concatenate(parts)

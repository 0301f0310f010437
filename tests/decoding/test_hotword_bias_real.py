"""Tests of hotwords with the embedded tiny.en: they are transcribed where they are spoken, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, SHARED, recognizer

pytestmark = pytest.mark.real

NAMES = ("Lynde", "Avonlea", "d'Artagnan", "Nuzhat", "Fuegians", "Cavell", "Steventon", "Merneptah", "Ilyin")
FIRST: dict[str, Any] = {"vad": False, "hallucination_threshold": None, "temperatures": (0.0,)}
"""Options for the first attempt at every window, speech or not."""
UNFILTERED: dict[str, Any] = {**FIRST, "no_speech_threshold": None, "compression_ratio_threshold": None}
"""The same, without any filter for silence or repetition."""


def transcribe(audio: Any, *hotwords: str, **options: Any) -> str:
    return recognizer("int8").transcribe(audio, hotwords=hotwords, **options).text


def test_spoken_hotwords_are_transcribed() -> None:
    path = SHARED / "audio" / "librispeech-train-clean" / "103-1240-0000.flac"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    without, within = transcribe(path, **FIRST), transcribe(path, *NAMES, **FIRST)
    assert without.count("Lynde") == without.count("Avonlea") == 0
    assert within.count("Lynde") == 2
    assert within.count("Avonlea") == 1


def test_unspoken_hotwords_change_nothing() -> None:
    assert transcribe(EXAMPLE, *NAMES, **FIRST) == transcribe(EXAMPLE, **FIRST)


@pytest.mark.parametrize("kind", ["silence", "hiss", "hum"])
def test_no_hotword_is_transcribed_without_speech(kind: str) -> None:
    time_s = np.arange(6 * SAMPLE_RATE) / SAMPLE_RATE
    recordings = {
        "silence": np.zeros(len(time_s)),
        "hiss": np.random.default_rng(0).standard_normal(len(time_s)) / 20,
        "hum": np.sin(2 * np.pi * 100 * time_s) / 10,
    }
    text = transcribe(recordings[kind].astype(np.float32), *NAMES, **UNFILTERED)
    assert not [name for name in NAMES if name.lower() in text.lower()]

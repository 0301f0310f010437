"""Hotwords with the embedded tiny.en: heard where they are said, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, SHARED, recognizer

pytestmark = pytest.mark.real

NAMES = ("Lynde", "Avonlea", "d'Artagnan", "Nuzhat", "Fuegians", "Cavell", "Steventon", "Merneptah", "Ilyin")
FIRST: dict[str, Any] = {"vad": False, "hallucination_threshold": None, "temperatures": (0.0,)}
"""The first attempt at every window, whether it is speech or not."""
SHOWN: dict[str, Any] = {**FIRST, "no_speech_threshold": None, "compression_ratio_threshold": None}
"""All of it, whatever speaks against it."""


def hearing(audio: Any, *hotwords: str, **options: Any) -> str:
    return recognizer("int8").transcribe(audio, hotwords=hotwords, **options).text


def test_names_are_heard_where_they_are_said() -> None:
    path = SHARED / "audio" / "librispeech-train-clean" / "103-1240-0000.flac"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    without, within = hearing(path, **FIRST), hearing(path, *NAMES, **FIRST)
    assert without.count("Lynde") == without.count("Avonlea") == 0
    assert within.count("Lynde") == 2
    assert within.count("Avonlea") == 1


def test_names_that_are_not_said_change_nothing() -> None:
    assert hearing(EXAMPLE, *NAMES, **FIRST) == hearing(EXAMPLE, **FIRST)


@pytest.mark.parametrize("kind", ["silence", "hiss", "hum"])
def test_no_name_is_heard_where_nothing_is_said(kind: str) -> None:
    time_s = np.arange(6 * SAMPLE_RATE) / SAMPLE_RATE
    sounds = {
        "silence": np.zeros(len(time_s)),
        "hiss": np.random.default_rng(0).standard_normal(len(time_s)) / 20,
        "hum": np.sin(2 * np.pi * 100 * time_s) / 10,
    }
    text = hearing(sounds[kind].astype(np.float32), *NAMES, **SHOWN)
    assert not [name for name in NAMES if name.lower() in text.lower()]

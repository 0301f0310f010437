"""The languages of a recording that is joined from several, with a real model."""

from __future__ import annotations

import json
from itertools import groupby

import numpy as np
import pytest

from harken.audio import load_audio, log_mel
from harken.contract import Floats
from harken.decoding import language_probabilities
from harken.transcribe.language_id import LanguageFilter
from harken.types import SAMPLE_RATE, WINDOW_SAMPLES
from real_models import SHARED, larger_recognizer

pytestmark = [pytest.mark.real, pytest.mark.slow]

SPOKEN = ("german", "french", "dutch", "german")
CODES = ["de", "fr", "nl", "de"]
BLOCK_S, WINDOW_S = 15, 5


def block(name: str) -> Floats:
    """The first seconds of a set, one recording behind the other."""
    manifest = SHARED / "audio" / name / "manifest.jsonl"
    if not manifest.is_file():
        pytest.skip(f"{manifest} is missing")
    entries = manifest.read_text(encoding="utf-8").splitlines()[:8]
    samples = [load_audio(manifest.parent / json.loads(entry)["audio"]) for entry in entries]
    return np.concatenate(samples)[: BLOCK_S * SAMPLE_RATE]


def test_the_language_changes_where_another_is_spoken_and_nowhere_else() -> None:
    samples = np.concatenate([block(name) for name in SPOKEN])
    windows = samples.reshape(-1, WINDOW_S * SAMPLE_RATE)
    recognizer = larger_recognizer("base")
    backend, padding = recognizer.backend, WINDOW_SAMPLES - windows.shape[1]
    mel = np.stack([log_mel(window, backend.dims.n_mels, padding) for window in windows])
    tracker, found = LanguageFilter(), []
    for probabilities in language_probabilities(backend, backend.encode(mel), recognizer.tokenizer):
        tracker = tracker.update(probabilities, WINDOW_S)
        found.append(tracker.result[0])
    assert [code for code, _ in groupby(found)] == CODES

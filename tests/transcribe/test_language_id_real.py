"""The languages of a recording joined from several languages, with a real model."""

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

FOLDERS = ("german", "dutch", "german")
CODES = ["de", "nl", "de"]
BLOCK_S, WINDOW_S = 10, 5


def block(name: str) -> Floats:
    """Return the first seconds of a data set, its recordings end to end."""
    manifest = SHARED / "audio" / name / "manifest.jsonl"
    if not manifest.is_file():
        pytest.skip(f"{manifest} is missing")
    entries = manifest.read_text(encoding="utf-8").splitlines()[:8]
    samples = [load_audio(manifest.parent / json.loads(entry)["audio"]) for entry in entries]
    return np.concatenate(samples)[: BLOCK_S * SAMPLE_RATE]


def test_language_changes_only_where_the_spoken_language_changes() -> None:
    samples = np.concatenate([block(name) for name in FOLDERS])
    windows = samples.reshape(-1, WINDOW_S * SAMPLE_RATE)
    recognizer = larger_recognizer("base")
    backend, padding = recognizer.backend, WINDOW_SAMPLES - windows.shape[1]
    mel = np.stack([log_mel(window, backend.dims.n_mels, padding) for window in windows])
    language_filter, languages = LanguageFilter(), []
    for probabilities in language_probabilities(backend, backend.encode(mel), recognizer.tokenizer):
        language_filter = language_filter.update(probabilities, WINDOW_S)
        languages.append(language_filter.result[0])
    assert [code for code, _ in groupby(languages)] == CODES

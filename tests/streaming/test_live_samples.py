"""Damaged audio in random blocks: a session gives the same events for any blocks and refuses invalid ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes.speech_detector import LoudIsSpeech
from fakes.tone_backend import LETTER_OPTIONS, ToneBackend, silence, speak_random_words
from harken.api import Recognizer
from harken.contract import Floats
from harken.errors import AudioError
from session_events import check_committed_text, check_events
from tiny_models import TOKENIZER

ROUNDS = 12


def noise(rng: np.random.Generator, samples: Floats) -> Floats:
    return samples + rng.normal(0, rng.choice([1e-6, 1e-3, 0.1]), len(samples)).astype(np.float32)


def clipped(rng: np.random.Generator, samples: Floats) -> Floats:
    return np.clip(samples * np.float32(rng.choice([10, 1e6])), -1, 1)


def too_loud(rng: np.random.Generator, samples: Floats) -> Floats:
    return samples * np.float32(rng.choice([2, 8]))


def dropout(rng: np.random.Generator, samples: Floats) -> Floats:
    start = int(rng.integers(len(samples)))
    return np.delete(samples, slice(start, start + int(rng.integers(1, 40_000))))


def clicks(rng: np.random.Generator, samples: Floats) -> Floats:
    damaged = samples.copy()
    damaged[rng.integers(0, len(damaged), 20)] = rng.choice([-1, 1])
    return damaged


def wild(rng: np.random.Generator, samples: Floats) -> Floats:
    damaged = samples.copy()
    damaged[rng.integers(0, len(damaged), 3)] = rng.choice([9, -1e4, 1e20, -3e38])
    return damaged


def constant(rng: np.random.Generator, samples: Floats) -> Floats:
    return samples + np.float32(rng.choice([-0.5, 0.02, 1.0]))


def swapped(rng: np.random.Generator, samples: Floats) -> Floats:
    """Return samples with the bytes of their 16-bit form swapped."""
    return ((samples * 32767).astype("<i2").byteswap() / np.float32(32768)).astype(np.float32)


DAMAGES = [noise, clipped, too_loud, dropout, clicks, wild, constant, swapped]
BAD: list[Any] = [
    np.full(300, np.nan, np.float32),
    np.array([0, -np.inf, 0], np.float32),
    np.full(300, 12_000, np.float32),
    np.sin(np.arange(400)) * 3000,
    np.zeros(10, np.int64),
    np.zeros(10, np.uint8),
    np.zeros((1, 512), np.float32),
    np.zeros(3, bool),
    np.array(["0.1"]),
    np.array(0.0, np.float32),
]


@pytest.mark.parametrize("finals", ["exact", "streamed"])
def test_damaged_audio_in_any_blocks_gives_consistent_events(finals: str) -> None:
    recognizer = Recognizer(ToneBackend(), TOKENIZER, "listener", speech_detector=LoudIsSpeech)
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        speech = (
            silence(rng.uniform(0, 1)) + speak_random_words(int(rng.integers(1, 25)), seed=seed) + silence(1.2)
        )
        samples = speech.samples
        for damage in rng.choice(len(DAMAGES), rng.integers(0, 3), replace=False):
            samples = DAMAGES[damage](rng, samples)
        options = {
            "finals": finals,
            "clock": None,
            "delay": str(rng.choice(["minimal", "low", "high"])),
            **LETTER_OPTIONS,
        }
        session, other = recognizer.stream(**options), recognizer.stream(**options)
        events = []
        for block in np.split(samples, np.sort(rng.integers(0, len(samples), rng.integers(0, 12)))):
            if rng.random() < 0.3:
                with pytest.raises(AudioError) as error:
                    session.feed(BAD[rng.integers(len(BAD))])
                assert "\n" not in str(error.value)
            events += session.feed(block)
        events += session.close()
        assert events == other.feed(samples) + other.close(), seed
        found = check_events(events, len(samples))
        if finals == "streamed":
            check_committed_text(found)

"""Inputs of the recorded speech probabilities, and the reference that computes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.audio import load_audio

EXAMPLE = Path(__file__).parents[2] / "examples" / "jfk.flac"
CHUNK, CONTEXT = 512, 64

Floats = NDArray[np.float32]


def _tones() -> Floats:
    """Return two seconds of an intermittent vowel-like tone, clipped, with an incomplete last chunk."""
    time = np.arange(2 * 16000 + 77) / 16000
    voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 20))
    return np.clip(voice * (np.sin(2 * np.pi * 1.5 * time) > 0), -1, 1).astype(np.float32)


INPUTS: dict[str, Callable[[], Floats]] = {
    "jfk": lambda: load_audio(EXAMPLE),
    "jfk_quiet": lambda: load_audio(EXAMPLE)[40000:100000] * np.float32(0.003),
    "tones": _tones,
    "silence": lambda: np.zeros(16000, np.float32),
}


def reference(graph: Path, samples: Floats) -> Floats:
    """Compute probabilities with the published graph in ONNX Runtime."""
    import onnxruntime

    chunks = -(-len(samples) // CHUNK)
    padded = np.zeros(CONTEXT + chunks * CHUNK, np.float32)
    padded[CONTEXT : CONTEXT + len(samples)] = samples
    inputs = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + CHUNK)[::CHUNK]
    state = np.zeros((1, 1, 128), np.float32)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    probabilities, *_ = session.run(None, {"input": np.ascontiguousarray(inputs), "h": state, "c": state})
    return probabilities.ravel()

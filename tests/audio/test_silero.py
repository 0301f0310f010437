"""Silero in the compiled library and in numpy: the same probabilities, however the chunks are divided into calls."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.audio import load_audio
from harken.audio.silero import CHUNK_SAMPLES, CompiledProbabilities, NumpyProbabilities
from harken.contract import Floats
from real_models import EXAMPLE

CONTEXT_SAMPLES = 64
N_CHUNKS = 60
TOLERANCE = 2e-5
"""Both round in float32, and the LSTM accumulates it."""


def divided(probabilities_of, samples: Floats, cuts: list[int]) -> Floats:
    """Return the probabilities of all chunks of samples, given in several calls."""
    bounds = [0, *sorted(set(cuts)), (len(samples) - CONTEXT_SAMPLES) // CHUNK_SAMPLES]
    return np.concatenate(
        [
            probabilities_of(
                samples[first * CHUNK_SAMPLES : end * CHUNK_SAMPLES + CONTEXT_SAMPLES], end - first
            )
            for first, end in pairwise(bounds)
        ]
    )


@pytest.fixture(scope="module")
def samples() -> Floats:
    return load_audio(EXAMPLE)[: N_CHUNKS * CHUNK_SAMPLES + CONTEXT_SAMPLES]


@pytest.mark.parametrize("gain", [1, 0.003, 8, 0])
def test_compiled_probabilities_equal_those_of_numpy(gain: float) -> None:
    samples = load_audio(EXAMPLE) * np.float32(gain)
    n_chunks = (len(samples) - CONTEXT_SAMPLES) // CHUNK_SAMPLES
    compiled, reference = (make()(samples, n_chunks) for make in (CompiledProbabilities, NumpyProbabilities))
    assert compiled.shape == (n_chunks,)
    assert compiled.dtype == np.float32
    np.testing.assert_allclose(compiled, reference, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("make", [CompiledProbabilities, NumpyProbabilities])
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, N_CHUNKS - 1), max_size=N_CHUNKS))
def test_divisions_into_calls_change_no_bit(make, samples: Floats, cuts: list[int]) -> None:
    np.testing.assert_array_equal(divided(make(), samples, cuts), divided(make(), samples, []))

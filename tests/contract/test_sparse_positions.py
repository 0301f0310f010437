"""Windows of which only some positions are encoded: every backend that can, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import PROMPT, BackendPair, decode

from harken.backends.numpy.backend import NumpyBackend, NumpyFeatures
from harken.contract import SparsePositions
from tiny_models import DIMS, N_WINDOWS, make_mel

DENSE = DIMS.n_audio_ctx // 2
THIN = range(DENSE + 1, DIMS.n_audio_ctx, 3)
SPARSE = SparsePositions((*range(DENSE), *THIN), (*[1.0] * DENSE, *[3.0] * len(THIN)))


@pytest.fixture
def sparse(backends: BackendPair) -> BackendPair:
    """A backend and the reference over the same positions of the same windows."""
    if not backends.tested.capabilities.sparse_positions:
        pytest.skip(f"{backends.name} encodes all positions")
    return backends.encode(make_mel()[:, :, : 2 * len(SPARSE.numbers)], SPARSE)


def test_output_logits_and_attention_are_those_of_the_reference(sparse: BackendPair) -> None:
    own = sparse.tested.encoder_output(sparse.features)
    reference = sparse.reference.encoder_output(sparse.reference_features)
    assert own.shape == (N_WINDOWS, len(SPARSE.numbers), DIMS.n_audio_state)
    np.testing.assert_allclose(own, reference, atol=sparse.tolerance * reference.std(), rtol=0)
    session = sparse.open_session(range(N_WINDOWS), attention=True)
    session.extend([PROMPT] * N_WINDOWS)
    session.attention(N_WINDOWS - 1)


def test_a_decoder_that_reuses_the_output_counts_positions_as_well(sparse: BackendPair) -> None:
    again = sparse.tested.reuse_encoder_output(sparse.features)
    np.testing.assert_array_equal(
        decode(sparse.tested, again, [1]), decode(sparse.tested, sparse.features, [1])
    )


def test_positions_that_each_stand_for_themselves_are_a_window(sparse: BackendPair) -> None:
    mel = make_mel()
    frames = mel.shape[2] // 2
    plain = sparse.tested.encoder_output(sparse.tested.encode(mel))
    counted = sparse.tested.encode(mel, SparsePositions(tuple(range(frames)), (1.0,) * frames))
    np.testing.assert_allclose(
        sparse.tested.encoder_output(counted), plain, atol=sparse.tolerance * plain.std(), rtol=0
    )


def test_a_position_in_place_of_equal_ones_changes_nothing(reference_backend: NumpyBackend) -> None:
    """Where keys and values are equal, attention to one that counts twice is attention to both."""
    output = reference_backend.encoder_output(reference_backend.encode(make_mel()[:1]))
    n = output.shape[1]
    once = NumpyFeatures(output, [n], SparsePositions(tuple(range(n)), (2.0,) * n))
    twice = NumpyFeatures(np.repeat(output, 2, axis=1), [2 * n])
    one, other = (decode(reference_backend, features) for features in (once, twice))
    np.testing.assert_allclose(one, other, atol=1e-4)

"""Windows whose padding is frozen: every backend that can, against the reference."""

import numpy as np
import pytest
from pairs import PROMPT, decode

from harken.backends.numpy import model
from harken.backends.numpy.backend import NumpyFeatures
from harken.contract import SparsePositions
from tiny_models import DIMS, N_WINDOWS, make_mel

ENCODED, WINDOW = DIMS.n_audio_ctx // 2, DIMS.n_audio_ctx
SPARSE = SparsePositions(ENCODED, tuple(range(1, WINDOW, 3)), WINDOW)


@pytest.fixture
def sparse(backends):
    """A backend and the reference over the same beginnings of the same windows."""
    if not backends.tested.capabilities.sparse_positions:
        pytest.skip(f"{backends.name} encodes all positions")
    return backends.encode(make_mel()[:, :, : 2 * ENCODED], SPARSE)


def test_output_logits_and_attention_are_those_of_the_reference(sparse):
    sparse.compare_output()
    own = sparse.tested.encoder_output(sparse.features)
    assert own.shape == (N_WINDOWS, ENCODED + len(SPARSE.frozen), DIMS.n_audio_state)
    session = sparse.open_session(range(N_WINDOWS), attention=True)
    session.extend([PROMPT] * N_WINDOWS)
    session.attention(N_WINDOWS - 1)


def test_a_decoder_that_reuses_the_output_counts_positions_as_well(sparse):
    again = sparse.tested.reuse_encoder_output(sparse.features)
    np.testing.assert_array_equal(
        decode(sparse.tested, again, [1]), decode(sparse.tested, sparse.features, [1])
    )


def test_windows_of_other_lengths_in_between_change_nothing(sparse):
    shorter = SparsePositions(ENCODED // 2, SPARSE.sample, WINDOW)
    before = decode(sparse.tested, sparse.features, [1])
    first = sparse.tested.encode(make_mel()[:, :, :ENCODED], shorter)
    after = sparse.tested.encode(make_mel()[:, :, : 2 * ENCODED], SPARSE)
    again = sparse.tested.encode(make_mel()[:, :, :ENCODED], shorter)
    np.testing.assert_array_equal(before, decode(sparse.tested, after, [1]))
    np.testing.assert_array_equal(decode(sparse.tested, first, [0]), decode(sparse.tested, again, [0]))


def test_windows_that_were_encoded_apart_are_decoded_together_as_each_alone(sparse):
    backend, shorter = sparse.tested, SparsePositions(ENCODED // 2, SPARSE.sample, WINDOW)
    if not backend.capabilities.joins_features:
        pytest.skip(f"{sparse.name} joins no features")
    parts = [
        backend.encode(make_mel()[:, :, :ENCODED], shorter),
        sparse.features,
        backend.encode(make_mel()),
    ]
    joined = backend.join_features(parts)
    assert joined.n_windows == 3 * N_WINDOWS
    together = decode(backend, joined, range(3 * N_WINDOWS))
    alone = [decode(backend, part, [window]) for part in parts for window in range(N_WINDOWS)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_a_window_with_its_own_padding_frozen_is_that_window(reference_backend, monkeypatch):
    mel = make_mel()[:1]
    mel[:, :, 2 * ENCODED :] = 0
    monkeypatch.setattr(model, "short_speech_window", lambda dims: mel[0])
    all_positions = SparsePositions(ENCODED, tuple(range(WINDOW)), WINDOW)
    frozen = reference_backend.encode(mel[:, :, : 2 * ENCODED], all_positions)
    whole = reference_backend.encode(mel)
    np.testing.assert_allclose(frozen.windows, whole.windows, atol=1e-5)


def test_a_position_in_place_of_equal_ones_changes_nothing(reference_backend):
    """Where keys and values are equal, attention to one that counts three times is attention to three."""
    output = reference_backend.encode(make_mel()[:1]).windows[0][: ENCODED + 1]
    once = NumpyFeatures([output], SparsePositions(ENCODED, (ENCODED,), ENCODED + 3))
    thrice = NumpyFeatures([np.pad(output, ((0, 2), (0, 0)), "edge")])
    one, other = (decode(reference_backend, features) for features in (once, thrice))
    np.testing.assert_allclose(one, other, atol=1e-4)

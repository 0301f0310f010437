"""Windows whose padding is frozen: every backend that can, against the reference."""

import numpy as np
import pytest
from pairs import PROMPT, decode

from harken.backends.encoding import FrozenPadding, count_groups, padding_groups, pool
from harken.backends.numpy import model
from harken.backends.numpy.backend import NumpyFeatures
from tiny_models import DIMS, N_WINDOWS, make_mel

ENCODED, WINDOW = DIMS.n_audio_ctx // 2, DIMS.n_audio_ctx


@pytest.fixture
def padded(backends):
    """A backend and the reference over the same beginnings of the same windows."""
    if not backends.tested.capabilities.frozen_padding:
        pytest.skip(f"{backends.name} encodes all positions")
    return backends.encode(make_mel()[:, :, : 2 * ENCODED], padded=True)


def test_output_logits_and_attention_are_those_of_the_reference(padded):
    padded.compare_output()
    own = padded.tested.encoder_output(padded.features)
    n_frozen = len(padded.reference_features.padding.counts)
    assert own.shape == (N_WINDOWS, ENCODED + n_frozen, DIMS.n_audio_state)
    assert 0 < n_frozen < WINDOW - ENCODED
    session = padded.open_session(range(N_WINDOWS), attention=True)
    session.extend([PROMPT] * N_WINDOWS)
    session.attention(N_WINDOWS - 1)


def test_a_decoder_that_reuses_the_output_counts_positions_as_well(padded):
    again = padded.tested.reuse_encoder_output(padded.features)
    np.testing.assert_array_equal(
        decode(padded.tested, again, [1]), decode(padded.tested, padded.features, [1])
    )


def test_windows_of_other_lengths_in_between_change_nothing(padded):
    before = decode(padded.tested, padded.features, [1])
    first = padded.tested.encode(make_mel()[:, :, :ENCODED], padded=True)
    after = padded.tested.encode(make_mel()[:, :, : 2 * ENCODED], padded=True)
    again = padded.tested.encode(make_mel()[:, :, :ENCODED], padded=True)
    np.testing.assert_array_equal(before, decode(padded.tested, after, [1]))
    np.testing.assert_array_equal(decode(padded.tested, first, [0]), decode(padded.tested, again, [0]))


def test_windows_that_were_encoded_apart_are_decoded_together_as_each_alone(padded):
    backend = padded.tested
    if not backend.capabilities.joins_features:
        pytest.skip(f"{padded.name} joins no features")
    parts = [
        backend.encode(make_mel()[:, :, :ENCODED], padded=True),
        padded.features,
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
    monkeypatch.setattr(model, "padding_groups", lambda arrays: np.arange(WINDOW))
    frozen = reference_backend.encode(mel[:, :, : 2 * ENCODED], padded=True)
    whole = reference_backend.encode(mel)
    np.testing.assert_allclose(frozen.windows, whole.windows, atol=1e-5)


def test_a_position_in_place_of_equal_ones_changes_nothing(reference_backend):
    """Where keys and values are equal, attention to one that counts three times is attention to three."""
    output = reference_backend.encode(make_mel()[:1]).windows[0][: ENCODED + 1]
    once = NumpyFeatures([output], FrozenPadding(ENCODED, np.array([3])))
    thrice = NumpyFeatures([np.pad(output, ((0, 2), (0, 0)), "edge")])
    one, other = (decode(reference_backend, features) for features in (once, thrice))
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_unusual_positions_stand_for_themselves_and_the_others_for_their_neighbours():
    positions, unusual = 1500, [120, 121, 700, 1499]
    output = np.random.default_rng(0).standard_normal((positions, 4), np.float32) / 100
    output[unusual] += 1 + np.arange(4)[:, None]
    groups = padding_groups([output])
    counts = np.bincount(groups)
    assert len(counts) == count_groups(positions)
    assert all(counts[groups[unusual]] == 1)
    for group, mean in enumerate(pool(output, groups)):
        (members,) = np.nonzero(groups == group)
        np.testing.assert_allclose(mean, output[members].mean(axis=0), atol=1e-6)
        assert members[-1] - members[0] < 125, "neighbours lie within 2.5 s"
    padding = FrozenPadding.behind(700, groups)
    assert padding.counts.sum() == positions - 700, "every position behind the audio counts once"

"""The decoder in rotated coordinates: the same logits, with weights that quantise better."""

import numpy as np
import pytest

from harken.backends.numpy import NumpyBackend
from harken.backends.rotation import LM_HEAD, RotatedWeights
from tiny_models import DIMS, make_mel, make_weights

BLOCK = "decoder.blocks.1"


def uneven_weights():
    """Draw weights whose normalisations have gains and biases of all sizes, some of them 0."""
    rng, weights = np.random.default_rng(0), make_weights()
    for name in weights:
        if name.startswith("decoder") and "ln." in name:
            size = len(weights[name])
            weights[name] = (rng.standard_normal(size) * np.exp(rng.standard_normal(size))).astype(np.float32)
            weights[name][:3] = 0
    return weights


def logits(weights):
    backend = NumpyBackend(DIMS, weights)
    session = backend.open_session(backend.encode(make_mel(2)), [0, 1], 12)
    return session.extend([range(12), range(50, 62)], 12).values


def test_rotated_decoder_computes_the_same_logits():
    """The reference backend has no bias in the last projection, so that is applied here."""
    weights = uneven_weights()
    expected = logits(weights)
    rotated = RotatedWeights(weights, DIMS)
    for norm in (f"{BLOCK}.attn_ln", f"{BLOCK}.cross_attn_ln", f"{BLOCK}.mlp_ln", "decoder.ln"):
        assert (rotated[f"{norm}.weight"] == 1).all()
        assert not rotated[f"{norm}.bias"].any()
    own = {name: rotated[name] for name in rotated if not name.startswith((LM_HEAD, "decoder.ln"))}
    ones, zeros = np.ones(DIMS.n_text_state, np.float32), np.zeros(DIMS.n_text_state, np.float32)
    rotated_logits = logits(weights | own | {"decoder.ln.weight": ones, "decoder.ln.bias": zeros})
    embedding = rotated["decoder.token_embedding.weight"].astype(np.float64)
    hidden_states, *_ = np.linalg.lstsq(embedding, rotated_logits.T.astype(np.float64), rcond=None)
    actual = hidden_states.T @ rotated[f"{LM_HEAD}.weight"].T + rotated[f"{LM_HEAD}.bias"]
    np.testing.assert_allclose(actual, expected, atol=2e-4 * expected.std())


def test_outlier_hidden_units_come_first():
    weights = make_weights()
    weights[f"{BLOCK}.mlp_ln.bias"][:] = 0  # so that the weights of a unit change its deviation, not its mean
    weights[f"{BLOCK}.mlp.0.weight"][7] *= 50
    weights[f"{BLOCK}.mlp.0.bias"][100] = 300
    rotated = RotatedWeights(weights, DIMS)
    assert rotated[f"{BLOCK}.mlp.0.bias"][0] == pytest.approx(300, rel=0.01)
    norms = np.linalg.norm(rotated[f"{BLOCK}.mlp.0.weight"], axis=1)
    assert norms[1] == norms.max()
    before, after = weights[f"{BLOCK}.mlp.2.weight"], rotated[f"{BLOCK}.mlp.2.weight"]
    for first, unit in enumerate((100, 7)):
        assert np.linalg.norm(after[:, first]) == pytest.approx(np.linalg.norm(before[:, unit]), rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_embedding_keeps_its_precision(dtype):
    name = "decoder.token_embedding.weight"
    weights = make_weights()
    weights[name] = weights[name].astype(dtype)
    assert RotatedWeights(weights, DIMS)[name].dtype == dtype

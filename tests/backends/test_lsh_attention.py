"""Attention by locality-sensitive hashing: the keys that it finds, its exactness over them, its memory."""

import math

import numpy as np
import pytest

import harken
from real_models import EXAMPLE
from tiny_models import DIMS, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from harken.backends.torch import LSHAttention, TorchBackend  # noqa: E402
from harken.backends.torch.model import attend  # noqa: E402

KEYS = 64


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(lsh, query, key, mask=None):
    """Return the softmax weights of one head, shape (batch, queries, keys): its output over unit vectors."""
    units = torch.eye(key.shape[1]).expand(len(key), -1, -1)
    return lsh(query, key, units, 1, mask)


def mask_first_keys(batch, first):
    """Mask the first keys of every second sequence."""
    mask = torch.zeros(batch, 1, 1, KEYS)
    mask[::2, ..., :first] = -math.inf
    return mask


@pytest.mark.parametrize("queries", [1, 40, KEYS])
@pytest.mark.parametrize("rounds", [0, 5])
def test_output_is_the_softmax_over_the_attended_keys(queries, rounds):
    query, key = 3 * draw(3, queries, KEYS), draw(3, KEYS, KEYS, seed=1)
    for mask in (None, mask_first_keys(3, 30)):
        actual = weights(LSHAttention(rounds=rounds, bucket_size=4), query, key, mask)
        attended = actual > 0
        assert (attended.sum(-1) <= (rounds + 1) * 12).all()
        assert (attended.sum(-1) > 0).all()
        scores = (query @ key.mT / math.sqrt(KEYS)).masked_fill(~attended, -math.inf)
        torch.testing.assert_close(actual, scores.softmax(-1), rtol=1e-4, atol=1e-6)
        if mask is not None:
            assert not attended[::2, :, :30].any()


@pytest.mark.parametrize("lsh", [LSHAttention(bucket_size=22), LSHAttention(rounds=64, bucket_size=16)])
def test_with_runs_or_rounds_over_all_keys_it_is_full_attention(lsh):
    query, key, value = draw(2, 20, 32), draw(2, KEYS, 32, seed=1), draw(2, KEYS, 32, seed=2)
    mask = mask_first_keys(2, 9)
    full = attend(query, key, value, 4, mask)
    torch.testing.assert_close(lsh(query, key, value, 4, mask), full, rtol=1e-4, atol=1e-5)
    half = lsh(query.bfloat16(), key.bfloat16(), value.bfloat16(), 4, mask)
    assert half.dtype == torch.bfloat16
    assert (half.float() - full).norm() < 0.02 * full.norm()


def test_keys_in_the_direction_of_the_query_and_keys_near_in_time_are_found():
    order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(3))
    query = draw(1, KEYS, KEYS)
    key = query[:, order] + 5  # a component that all keys share
    match, rows = torch.argsort(order), torch.arange(KEYS)

    def share(of):
        found = weights(LSHAttention(rounds=4, bucket_size=4), of, key)[0] > 0
        assert found[rows, (rows // 4 * 4).clamp(4, KEYS - 8)].all()
        return float(found[rows, match].float().mean())

    assert share(query) > 0.95
    assert share(draw(1, KEYS, KEYS, seed=7)) < 0.75


class LargestTensor(TorchDispatchMode):
    """A probe of the largest tensor that any operator makes."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.size = max([self.size, *(x.untyped_storage().nbytes() // x.itemsize for x in tensors)])
        return result


def test_memory_does_not_grow_with_the_square_of_keys():
    largest = {}
    for keys in (250, 1000):
        with LargestTensor() as probe:
            LSHAttention(rounds=2, bucket_size=16)(*(draw(1, keys, 32, seed=i) for i in range(3)), heads=2)
        largest[keys] = probe.size
    assert largest[1000] <= 4.2 * largest[250]


def encode(attention):
    """Encode a window, and a stream of two chunks of which the second attends to the first."""
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1, attention=attention)
    stream, mel = backend.open_encoder(24), make_mel(1)
    backend.encode_chunk([stream], mel[:, :, :25], 16)
    backend.encode_chunk([stream], mel[:, :, 16:], 32)
    features = backend.encode(make_mel()), backend.stream_features([stream])
    return tuple(backend.encoder_output(own) for own in features)


def test_windows_and_streams_are_encoded_with_it():
    full = encode(attend)
    for own, expected in zip(encode(LSHAttention(bucket_size=100)), full, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-6)
    for own, expected in zip(encode(LSHAttention(rounds=0, bucket_size=2)), full, strict=True):
        assert np.abs(own - expected).max() > 0.01
    for first, second in zip(
        encode(LSHAttention(bucket_size=2)), encode(LSHAttention(bucket_size=2)), strict=True
    ):
        np.testing.assert_array_equal(first, second)


@pytest.mark.real
@pytest.mark.nightly
def test_a_recording_is_transcribed_with_it():
    recognizer = harken.load("tiny.en", backend="torch", device="cpu", attention="lsh", threads=1)
    assert "LSHAttention(rounds=3, bucket_size=64)" in recognizer.backend.capabilities.detail
    assert "ask what you can do for your country" in recognizer.transcribe(EXAMPLE).text

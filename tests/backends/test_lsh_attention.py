"""Attention by locality-sensitive hashing: the keys that it finds, its exactness over them, and its memory."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from harken.errors import OptionError
from tiny_models import DIMS, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from harken.backends.torch import LSHAttention, TorchBackend  # noqa: E402
from harken.backends.torch.attention import attend  # noqa: E402

KEYS = 64


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(lsh: LSHAttention, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the softmax weights of one head, shape (batch, queries, keys): its output over unit vectors."""
    units = torch.eye(key.shape[1]).expand(len(key), -1, -1)
    return lsh(query, key, units, 1, mask)


def softmax(query: Tensor, key: Tensor, attended: Tensor) -> Tensor:
    """Return softmax weights over the attended keys."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.masked_fill(~attended, -math.inf).softmax(-1)


def mask_first_keys(batch: int, first: int) -> Tensor:
    """Mask the first keys of every second sequence."""
    mask = torch.zeros(batch, 1, 1, KEYS)
    mask[::2, ..., :first] = -math.inf
    return mask


@pytest.mark.parametrize("queries", [1, 7, 40, KEYS])
@pytest.mark.parametrize("nearby", [True, False])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_output_is_the_softmax_over_the_attended_keys(queries: int, nearby: bool, rounds: int) -> None:
    lsh = LSHAttention(rounds=rounds, buckets=4, chunk=4, nearby=nearby)
    query, key = 3 * draw(3, queries, KEYS), draw(3, KEYS, KEYS, seed=1)
    for mask in (None, mask_first_keys(3, 30)):
        actual = weights(lsh, query, key, mask)
        attended = actual > 0
        assert (attended.sum(-1) <= (rounds + nearby) * 12).all()
        assert (attended.sum(-1) > 0).all()
        torch.testing.assert_close(actual, softmax(query, key, attended), rtol=1e-4, atol=1e-6)
        if mask is not None:
            assert not attended[::2, :, :30].any()


def test_run_over_all_keys_equals_full_attention() -> None:
    query, key, value = draw(2, 20, 32), draw(2, 30, 32, seed=1), draw(2, 30, 32, seed=2)
    mask = torch.zeros(2, 1, 1, 30)
    mask[0, ..., :9] = -math.inf
    torch.testing.assert_close(
        LSHAttention(chunk=10)(query, key, value, 4, mask), attend(query, key, value, 4, mask)
    )


def test_rounds_over_all_keys_equal_full_attention() -> None:
    query, key, value = draw(2, KEYS, 32), draw(2, KEYS, 32, seed=1), draw(2, KEYS, 32, seed=2)
    mixed = LSHAttention(rounds=40, buckets=4, chunk=12)(query, key, value, 4)
    torch.testing.assert_close(mixed, attend(query, key, value, 4), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nearby", [True, False])
def test_error_falls_with_the_number_of_rounds(nearby: bool) -> None:
    query, key, value = 2 * draw(4, 200, 32), 2 * draw(4, 200, 32, seed=1), draw(4, 200, 32, seed=2)
    exact = attend(query, key, value, 2)
    errors = [
        float(
            (
                LSHAttention(rounds=rounds, buckets=8, chunk=8, nearby=nearby)(query, key, value, 2) - exact
            ).norm()
        )
        for rounds in (1, 2, 4, 8, 16)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.35 * errors[0]


def test_later_rounds_only_add_keys() -> None:
    query, key = draw(2, KEYS, KEYS), draw(2, KEYS, KEYS, seed=1)
    attended = [weights(LSHAttention(rounds=rounds, chunk=4), query, key) > 0 for rounds in (0, 1, 2, 4)]
    for fewer, more in pairwise(attended):
        assert (fewer <= more).all()
        assert fewer.sum() < more.sum()


def test_keys_in_the_direction_of_the_query_are_found() -> None:
    order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(3))
    query = draw(1, KEYS, KEYS)
    key = query[:, order] + 5  # a component that all keys share
    found = weights(LSHAttention(rounds=4, buckets=16, chunk=4, nearby=False), query, key)[0]
    chance = weights(
        LSHAttention(rounds=4, buckets=16, chunk=4, nearby=False), draw(1, KEYS, KEYS, seed=7), key
    )[0]
    match = torch.argsort(order)
    rows = torch.arange(KEYS)
    assert (found[rows, match] > 0).float().mean() > 0.95
    assert (chance[rows, match] > 0).float().mean() < 0.7


def test_keys_near_in_time_are_found() -> None:
    """Queries are the last of the keys; each attends to its own chunk and those beside it."""
    attended = weights(LSHAttention(rounds=0, chunk=4), draw(1, 20, KEYS), draw(1, KEYS, KEYS, seed=1))[0] > 0
    for query, keys in enumerate(attended):
        first = min(KEYS - 20 + query // 4 * 4 - 4, KEYS - 12)
        assert keys.nonzero().flatten().tolist() == list(range(first, first + 12))


def test_batch_equals_each_sequence_alone() -> None:
    lsh, mask = LSHAttention(chunk=4), mask_first_keys(3, 20)
    query, key, value = draw(3, 30, 32), draw(3, KEYS, 32, seed=1), draw(3, KEYS, 32, seed=2)
    together = lsh(query, key, value, 4, mask)
    for i in range(3):
        row = slice(i, i + 1)
        alone = lsh(query[row], key[row], value[row], 4, mask[row])
        torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-5)


class LargestTensor(TorchDispatchMode):
    """A probe of the largest tensor that any operator makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        storages = [
            x.untyped_storage().nbytes() // x.itemsize for x in tree_leaves(result) if isinstance(x, Tensor)
        ]
        self.size = max(self.size, *storages, 0)
        return result


def test_memory_does_not_grow_with_the_square_of_keys() -> None:
    largest = {}
    for keys in (500, 1000, 2000):
        query, key, value = draw(1, keys, 32), draw(1, keys, 32, seed=1), draw(1, keys, 32, seed=2)
        with LargestTensor() as mode:
            LSHAttention(rounds=2, chunk=16)(query, key, value, 2)
        largest[keys] = mode.size
        assert mode.size < 2 * keys * keys / 5
    assert largest[2000] <= 4.2 * largest[500]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_is_close_to_full_attention(precision: str) -> None:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    query, key, value = draw(2, KEYS, 32), draw(2, KEYS, 32, seed=1), draw(2, KEYS, 32, seed=2)
    full = attend(query, key, value, 4)
    mixed = LSHAttention(rounds=40, buckets=4, chunk=12)(query.to(dtype), key.to(dtype), value.to(dtype), 4)
    assert mixed.dtype == dtype
    assert (mixed.float() - full).norm() < 0.02 * full.norm()


def encode_stream(lsh: LSHAttention | None) -> np.ndarray:
    """Encode a stream of two chunks, where the second attends to the first."""
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1, lsh_attention=lsh)
    encoder, mel = backend.open_encoder(24), make_mel(1)
    backend.encode_chunk([encoder], mel[:, :, :25], 16)
    backend.encode_chunk([encoder], mel[:, :, 16:], 32)
    return backend.stream_features([encoder]).encoder_output.numpy()


def test_streaming_encoder_uses_lsh_attention() -> None:
    full = encode_stream(None)
    np.testing.assert_allclose(encode_stream(LSHAttention(chunk=8)), full, atol=1e-6)
    np.testing.assert_allclose(encode_stream(LSHAttention(rounds=30, buckets=2, chunk=4)), full, atol=1e-4)
    assert np.abs(encode_stream(LSHAttention(rounds=0, chunk=2)) - full).max() > 0.1
    np.testing.assert_array_equal(
        encode_stream(LSHAttention(rounds=1, chunk=2)), encode_stream(LSHAttention(rounds=1, chunk=2))
    )


def test_whole_windows_are_encoded_with_full_attention() -> None:
    plain, hashed = (
        TorchBackend(DIMS, make_weights(), device="cpu", threads=1, lsh_attention=lsh)
        .encode(make_mel())
        .encoder_output
        for lsh in (None, LSHAttention(rounds=0, chunk=1))
    )
    torch.testing.assert_close(hashed, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": -1}, "rounds=-1: allowed is an integer from 0 on"),
        ({"rounds": 0, "nearby": False}, "rounds=0: allowed is an integer from 1 on"),
        ({"buckets": 7}, "buckets=7: allowed is an even number"),
        ({"buckets": 0}, "buckets=0: allowed is an integer from 2 on"),
        ({"chunk": 0}, "chunk=0: allowed is an integer from 1 on"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LSHAttention(**options)

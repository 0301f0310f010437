"""Verification of drafts by the GPU engine: ragged, rewound, and with few captured steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harken.backends.numpy import NumpyBackend
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from fakes.cuda_graphs import SYNCHRONIZING_OPERATORS, FakeGraphCapture  # noqa: E402
from harken.backends.torch import TorchBackend, model  # noqa: E402
from harken.backends.torch.static_cache import CAPTURED_STEP_TOKENS  # noqa: E402

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
MAX_DRAFT = 8


def verify(backend: TorchBackend, seed: int, rounds: int = 12) -> None:
    """Let a row of each window read 1 to 9 tokens a round and drop some of them, and compare with the reference."""
    rng, mel = np.random.default_rng(seed), make_mel()
    reference = NumpyBackend(DIMS, make_weights())
    sessions = [
        each.open_session(each.encode(mel), range(N_WINDOWS), DIMS.n_text_ctx) for each in (reference, backend)
    ]
    for session in sessions:
        session.extend([PROMPT] * N_WINDOWS)
    for _ in range(rounds):
        free_positions = [DIMS.n_text_ctx - length for length in sessions[0].lengths]
        widths = np.minimum(rng.integers(1, MAX_DRAFT + 2, N_WINDOWS), free_positions)
        tokens = [rng.integers(0, 256, width).tolist() for width in widths]
        lengths = [n + rng.integers(min(1, w), w + 1) for n, w in zip(sessions[0].lengths, widths, strict=True)]
        expected, actual = (session.extend(tokens, MAX_DRAFT + 1) for session in sessions)
        assert len(actual) == len(expected) == widths.sum()
        if len(expected):
            (ids, logprobs), (expected_ids, expected_logprobs) = actual.top(3), expected.top(3)
            np.testing.assert_array_equal(ids, expected_ids)
            np.testing.assert_allclose(logprobs, expected_logprobs, atol=1e-4)
        for session in sessions:
            session.rewind(lengths)
        assert sessions[0].lengths == sessions[1].lengths


def test_captured_steps_verify_ragged_drafts() -> None:
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1, graph_capture=FakeGraphCapture)
    before = FakeGraphCapture.made
    for seed in range(5):
        verify(backend, seed)
    assert FakeGraphCapture.made - before <= 3 + len([n for n in CAPTURED_STEP_TOKENS if n <= MAX_DRAFT + 1])


def test_drafts_of_any_length_use_few_captured_steps() -> None:
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1, graph_capture=FakeGraphCapture)
    session = backend.open_session(backend.encode(make_mel(1)), [0], DIMS.n_text_ctx)
    session.extend([PROMPT])
    before = FakeGraphCapture.made
    for width in [*range(1, 18), *range(17, 0, -1)]:
        assert len(session.extend([[65] * width], last_n=width)) == width
        session.rewind([len(PROMPT)])
    assert FakeGraphCapture.made - before <= len(CAPTURED_STEP_TOKENS) == 6


class WaitProbe(TorchDispatchMode):
    """A probe of the operators that bring a number to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += {func.overloadpacket.__name__} & SYNCHRONIZING_OPERATORS
        return func(*args, **(kwargs or {}))


def test_host_does_not_wait_before_tokens_are_chosen() -> None:
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1)
    session = backend.open_session(backend.encode(make_mel()), range(N_WINDOWS), DIMS.n_text_ctx)
    with WaitProbe() as waits:
        session.extend([PROMPT] * N_WINDOWS)
        logits = session.extend([[65, 66]] * N_WINDOWS, last_n=2)
        logits.suppress_tokens(np.array([3, 4]))
        logits.suppress_ranges([[(5, 9)], []] * N_WINDOWS)
        logits.bias([{70: 1.0}, {}] * N_WINDOWS)
        logits.prefer_timestamps(TOKENIZER.timestamp_begin)
        logits.select_positions([1, 0]).top(1)
        session.rewind([len(PROMPT)] * N_WINDOWS)
    assert waits.seen == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, 68])
def test_prepacked_matrices_multiply_like_plain_ones(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in [(2, rows, 96), (160, 96), 160]
    )
    weight /= 96**0.5
    expected = x.double() @ weight.double().T + bias.double()
    actual = model.linear(x, model.prepack(weight), bias)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)

"""Drafts that are verified by the GPU engine: ragged, rewound, and by few recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harken.backends.numpy import NumpyBackend
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from fakes.cuda_graphs import SYNCHRONIZING_OPERATORS, FakeGraphCapture  # noqa: E402
from harken.backends.torch import TorchBackend, linear  # noqa: E402
from harken.backends.torch.cuda_graphs import CAPTURED_STEP_TOKENS  # noqa: E402

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
MOST_DRAFTED = 8


def verify(backend: TorchBackend, seed: int, rounds: int = 12) -> None:
    """Let a row of each window read 1 to 9 tokens a round and forget some of them, as the reference does."""
    rng, mel = np.random.default_rng(seed), make_mel()
    reference_backend = NumpyBackend(DIMS, make_weights())
    sessions = [
        its.open_session(its.encode(mel), range(N_WINDOWS), DIMS.n_text_ctx)
        for its in (reference_backend, backend)
    ]
    for session in sessions:
        session.extend([PROMPT] * N_WINDOWS)
    for _ in range(rounds):
        room = [DIMS.n_text_ctx - length for length in sessions[0].lengths]
        widths = np.minimum(rng.integers(1, MOST_DRAFTED + 2, N_WINDOWS), room)
        tokens = [rng.integers(0, 256, width).tolist() for width in widths]
        lengths = [n + rng.integers(min(1, w), w + 1) for n, w in zip(sessions[0].lengths, widths, strict=True)]
        expected, actual = (session.extend(tokens, MOST_DRAFTED + 1) for session in sessions)
        assert len(actual) == len(expected) == widths.sum()
        if len(expected):
            (ids, logprobs), (wanted, wanted_logprobs) = actual.top(3), expected.top(3)
            np.testing.assert_array_equal(ids, wanted)
            np.testing.assert_allclose(logprobs, wanted_logprobs, atol=1e-4)
        for session in sessions:
            session.rewind(lengths)
        assert sessions[0].lengths == sessions[1].lengths


@pytest.mark.parametrize("seed", range(3))
def test_ragged_drafts_with_recorded_steps(seed: int) -> None:
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1, graph_capture=FakeGraphCapture)
    before = FakeGraphCapture.made
    verify(backend, seed)
    assert FakeGraphCapture.made - before <= 1 + len(
        [step for step in CAPTURED_STEP_TOKENS if step <= MOST_DRAFTED + 1]
    )
    recorded = FakeGraphCapture.made
    for its in range(3, 6):
        verify(backend, its)
    assert FakeGraphCapture.made - recorded <= 2  # widths that the first rounds did not happen to have


def test_any_length_of_draft_is_one_of_few_recordings() -> None:
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1, graph_capture=FakeGraphCapture)
    session = backend.open_session(backend.encode(make_mel(1)), [0], DIMS.n_text_ctx)
    session.extend([PROMPT])
    before = FakeGraphCapture.made
    for width in [*range(1, 18), *range(17, 0, -1)]:
        assert len(session.extend([[65] * width], last_n=width)) == width
        session.rewind([len(PROMPT)])
    assert FakeGraphCapture.made - before <= len(CAPTURED_STEP_TOKENS) == 6


class _Waits(TorchDispatchMode):
    """Names of the operators that brought a number to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += {func.overloadpacket.__name__} & SYNCHRONIZING_OPERATORS
        return func(*args, **(kwargs or {}))


def test_nothing_is_waited_for_until_tokens_are_chosen() -> None:
    backend = TorchBackend(DIMS, make_weights(), device="cpu", threads=1)
    session = backend.open_session(backend.encode(make_mel()), range(N_WINDOWS), DIMS.n_text_ctx)
    with _Waits() as waits:
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
def test_packed_matrices_multiply_like_others(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in [(2, rows, 96), (160, 96), 160]
    )
    weight /= 96**0.5
    expected = x.double() @ weight.double().T + bias.double()
    actual = linear.linear(x, linear.prepack(weight), bias)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)

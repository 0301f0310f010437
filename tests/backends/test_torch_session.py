"""Sessions of the GPU engine: captured steps, copies of cache rows, and reuse of caches."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from tiny_models import DIMS, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from fakes.cuda_graphs import FakeGraphCapture  # noqa: E402
from harken.backends.torch import TorchBackend  # noqa: E402
from harken.backends.torch.session import TorchLogits  # noqa: E402
from harken.backends.torch.static_cache import CAPTURED_STEP_TOKENS, MAX_CUDA_GRAPHS, CudaGraphCache  # noqa: E402
from harken.errors import OptionError  # noqa: E402

PROMPT = [1, 2, 3]


def make_backend(**options: object) -> TorchBackend:
    return TorchBackend(DIMS, make_weights(), device="cpu", threads=1, **options)


def count_captures(work: Callable[[], object]) -> int:
    """Count the steps that some work captures."""
    before = FakeGraphCapture.made
    work()
    return FakeGraphCapture.made - before


def log_probabilities(logits: TorchLogits) -> np.ndarray:
    return logits.values.log_softmax(1).numpy()


def decode(backend: TorchBackend, rows: list[int], *tokens: list[int], positions: int = 24) -> None:
    """Open a session, read the given tokens in every row, and drop it."""
    features = backend.encode(make_mel()[:, :, : 2 * positions])
    session = backend.open_session(features, rows, DIMS.n_text_ctx)
    for new in tokens:
        session.extend([new] * len(rows))


def test_step_is_captured_once_for_all_sessions_of_its_shape() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    assert count_captures(lambda: decode(backend, [0], PROMPT, [4], [5])) == 2  # 3 tokens, and 1
    assert count_captures(lambda: decode(backend, [3], PROMPT, [4], [5])) == 0
    assert count_captures(lambda: decode(backend, [0, 1], PROMPT, [4])) == 2
    assert count_captures(lambda: decode(backend, [0, 0], PROMPT, [4])) == 2
    assert count_captures(lambda: decode(backend, [2, 3], PROMPT, [4])) == 0
    assert count_captures(lambda: decode(backend, [0], [4], positions=10)) == 1  # a shorter window
    assert count_captures(lambda: decode(backend, [0], [7] * (CAPTURED_STEP_TOKENS[-1] + 1))) == 0
    assert count_captures(lambda: decode(make_backend(), [0], PROMPT, [4])) == 0  # on the CPU


def test_longer_past_needs_another_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harken.backends.torch.static_cache.MIN_PAST_POSITIONS", 8)
    captured, plain = (
        backend.open_session(backend.encode(make_mel()), [0, 2], DIMS.n_text_ctx)
        for backend in (make_backend(graph_capture=FakeGraphCapture), make_backend())
    )

    def compare_all_steps() -> None:
        for token in range(DIMS.n_text_ctx):
            step = [[token], [token + 100]]
            actual, expected = (log_probabilities(session.extend(step)) for session in (captured, plain))
            np.testing.assert_allclose(actual, expected, atol=1e-4)

    assert count_captures(compare_all_steps) == 4  # up to 8, 16, 32 and 48 positions


def test_reused_cache_does_not_leak_an_earlier_session() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    session = backend.open_session(backend.encode(make_mel()), [0], DIMS.n_text_ctx)
    expected = log_probabilities(session.extend([PROMPT]))
    session._cache.kv_cache.kv.fill_(torch.nan)
    del session
    gc.collect()
    again = backend.open_session(backend.encode(make_mel()), [0], DIMS.n_text_ctx)
    np.testing.assert_allclose(log_probabilities(again.extend([PROMPT])), expected, atol=1e-4)


def test_next_step_does_not_overwrite_logits() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    session = backend.open_session(backend.encode(make_mel()), [0], DIMS.n_text_ctx)
    session.extend([PROMPT])
    logits = session.extend([[4]])
    before = logits.values.clone()
    session.extend([[5]])
    torch.testing.assert_close(logits.values, before, rtol=0, atol=0)


def test_cache_is_not_reallocated_by_steps_rewinds_and_permutations() -> None:
    session = (backend := make_backend()).open_session(backend.encode(make_mel()), [0, 1], DIMS.n_text_ctx)
    address = session._cache.kv_cache.kv.data_ptr()
    session.extend([PROMPT] * 2)
    for token in range(20):
        session.extend([[token]] * 2)
    session.rewind([2, 5])
    session.reorder([1, 0])
    session.extend([[9]] * 2)
    assert session._cache.kv_cache.kv.data_ptr() == address


@pytest.mark.parametrize(
    ("parents", "copies"), [([0, 1, 2], 0), ([2, 0, 1], 0), ([2, 2, 0], 1), ([1, 1, 1], 2)]
)
def test_reorder_copies_only_rows_with_several_continuations(parents: list[int], copies: int) -> None:
    session = (backend := make_backend()).open_session(backend.encode(make_mel()), [0, 0, 0], DIMS.n_text_ctx)
    session.extend([PROMPT] * 3)
    before = [row.cache_row for row in session._rows]
    session.reorder(parents)
    after = [row.cache_row for row in session._rows]
    assert len(set(after)) == 3
    assert sum(row != before[parent] for row, parent in zip(after, parents, strict=True)) == copies


def test_pool_keeps_few_idle_caches() -> None:
    backend = make_backend()
    for rows in ([0], [0, 1], [0, 0], [0, 1, 2], [0] * 4):
        decode(backend, rows, [1])
    gc.collect()
    assert [cache.cache_rows for cache in backend._cache_pool._idle] == [3, 4]


def test_least_recently_used_graph_is_evicted() -> None:
    captured: list[int] = []

    def capture(step: Callable, static_input: torch.Tensor) -> tuple[Callable[[], None], torch.Tensor]:
        captured.append(int(static_input))
        output = torch.zeros(1)
        return lambda: output.copy_(step(static_input)), output

    cache = CudaGraphCache(capture)

    def run(key: int) -> None:
        result = cache(key, lambda x: x + 0.5, torch.tensor([float(key)]))
        assert result.item() == key + 0.5

    for key in range(MAX_CUDA_GRAPHS):
        run(key)
    run(0)
    run(MAX_CUDA_GRAPHS)
    run(0)
    assert len(captured) == MAX_CUDA_GRAPHS + 1
    run(1)
    assert captured[-1] == 1
    assert len(captured) == MAX_CUDA_GRAPHS + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, r"device='tpu': allowed is auto, .*cpu"),
        ({"device": "cuda:99"}, r"device='cuda:99': allowed is auto, .*cpu"),
        ({"device": "cpu", "precision": "int8"}, "precision='int8': allowed is auto, fp32, fp16, bf16"),
    ],
)
def test_unavailable_device_or_precision_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TorchBackend(DIMS, make_weights(), **options)


def test_default_precision_on_the_cpu_is_fp32() -> None:
    backend = make_backend()
    assert (backend.capabilities.device, backend.capabilities.precision) == ("cpu", "fp32")
    assert f"torch {torch.__version__} fp32 on CPU" in backend.capabilities.detail


def test_read_only_half_precision_weights_are_loaded() -> None:
    weights = {name: value.astype(np.float16) for name, value in make_weights().items()}
    for value in weights.values():
        value.flags.writeable = False
    backend = TorchBackend(DIMS, weights, device="cpu", precision="fp16")
    assert backend.encode(make_mel(1)).cross_kv.dtype == torch.float16

"""What the GPU engine does with its memory: when it records, when it replays, what it copies and keeps."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from tiny_models import DIMS, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")

from fakes.cuda_graphs import FakeGraphCapture  # noqa: E402
from harken.backends.torch import TorchBackend  # noqa: E402
from harken.backends.torch.cuda_graphs import CAPTURED_STEP_TOKENS, MAX_CUDA_GRAPHS, CudaGraphCache  # noqa: E402
from harken.backends.torch.logits import TorchLogits  # noqa: E402
from harken.errors import OptionError  # noqa: E402

PROMPT = [1, 2, 3]


def make_backend(**options: object) -> TorchBackend:
    return TorchBackend(DIMS, make_weights(), device="cpu", threads=1, **options)


def recordings(work: Callable[[], object]) -> int:
    """How many recordings some work has taken."""
    before = FakeGraphCapture.made
    work()
    return FakeGraphCapture.made - before


def log_probabilities(logits: TorchLogits) -> np.ndarray:
    return logits.values.log_softmax(1).numpy()


def decode(backend: TorchBackend, rows: list[int], *tokens: list[int], positions: int = 24) -> None:
    """Open a session, read the given tokens in every row, and forget it."""
    features = backend.encode(make_mel()[:, :, : 2 * positions])
    session = backend.open_session(features, rows, DIMS.n_text_ctx)
    for new in tokens:
        session.extend([new] * len(rows))


def test_a_step_is_recorded_once_for_all_sessions_of_its_shape() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    assert recordings(lambda: decode(backend, [0], PROMPT, [4], [5])) == 2  # 3 tokens, and 1
    assert recordings(lambda: decode(backend, [3], PROMPT, [4], [5])) == 0
    assert recordings(lambda: decode(backend, [0, 1], PROMPT, [4])) == 2
    assert recordings(lambda: decode(backend, [0, 0], PROMPT, [4])) == 2
    assert recordings(lambda: decode(backend, [2, 3], PROMPT, [4])) == 0


def test_a_shorter_window_is_another_step() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    assert recordings(lambda: decode(backend, [0], [4])) == 1
    assert recordings(lambda: decode(backend, [0], [4], positions=10)) == 1
    assert recordings(lambda: decode(backend, [0], [4])) == 0


def test_a_longer_past_is_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harken.backends.torch.static_cache.MIN_PAST_POSITIONS", 8)
    recorded, plain = (
        backend.open_session(backend.encode(make_mel()), [0, 2], DIMS.n_text_ctx)
        for backend in (make_backend(graph_capture=FakeGraphCapture), make_backend())
    )

    def follow() -> None:
        for token in range(DIMS.n_text_ctx):
            step = [[token], [token + 100]]
            actual, expected = (log_probabilities(session.extend(step)) for session in (recorded, plain))
            np.testing.assert_allclose(actual, expected, atol=1e-4)

    assert recordings(follow) == 4  # up to 8, 16, 32 and 48 positions


def test_long_prompts_are_not_recorded() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    assert recordings(lambda: decode(backend, [0], [7] * (CAPTURED_STEP_TOKENS[-1] + 1))) == 0


def test_nothing_is_recorded_on_the_cpu() -> None:
    assert recordings(lambda: decode(make_backend(), [0], PROMPT, [4])) == 0


def test_what_lies_in_memory_from_an_earlier_session_is_not_seen() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    session = backend.open_session(backend.encode(make_mel()), [0], DIMS.n_text_ctx)
    expected = log_probabilities(session.extend([PROMPT]))
    session._cache.kv_cache.kv.fill_(torch.nan)
    del session
    gc.collect()
    again = backend.open_session(backend.encode(make_mel()), [0], DIMS.n_text_ctx)
    np.testing.assert_allclose(log_probabilities(again.extend([PROMPT])), expected, atol=1e-4)


def test_logits_outlive_the_step_that_follows() -> None:
    backend = make_backend(graph_capture=FakeGraphCapture)
    session = backend.open_session(backend.encode(make_mel()), [0], DIMS.n_text_ctx)
    session.extend([PROMPT])
    logits = session.extend([[4]])
    before = logits.values.clone()
    session.extend([[5]])
    torch.testing.assert_close(logits.values, before, rtol=0, atol=0)


def test_memory_stays_where_it_is_while_a_session_steps_and_rewinds() -> None:
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
def test_select_copies_only_what_two_rows_go_on_from(parents: list[int], copies: int) -> None:
    session = (backend := make_backend()).open_session(backend.encode(make_mel()), [0, 0, 0], DIMS.n_text_ctx)
    session.extend([PROMPT] * 3)
    seats = [row.cache_row for row in session._rows]
    session.reorder(parents)
    after = [row.cache_row for row in session._rows]
    assert len(set(after)) == 3
    assert sum(seat != seats[parent] for seat, parent in zip(after, parents, strict=True)) == copies


def test_memory_follows_the_number_of_rows() -> None:
    session = (backend := make_backend()).open_session(
        backend.encode(make_mel()), [0, 1, 2, 3], DIMS.n_text_ctx
    )
    session.extend([PROMPT] * 4)
    shapes = []
    for rows in ([0, 1, 3], [0, 1], [1], [0] * 5, [0, 2], [1], []):
        session.reorder(rows)
        shapes.append((session._cache.shape.windows, session._cache.shape.rows_per_window))
    assert shapes == [(4, 1), (2, 1), (1, 1), (1, 5), (1, 2), (1, 1), (1, 1)]
    assert len(session.extend([])) == 0


def test_few_arenas_wait_for_sessions() -> None:
    backend = make_backend()
    for rows in ([0], [0, 1], [0, 0], [0, 1, 2], [0] * 4):
        decode(backend, rows, [1])
    gc.collect()
    assert [arena.cache_rows for arena in backend._cache_pool._idle] == [3, 4]


def test_recordings_that_are_used_least_go_first() -> None:
    made: list[int] = []

    def record(step: Callable, given: torch.Tensor) -> tuple[Callable[[], None], torch.Tensor]:
        made.append(int(given))
        output = torch.zeros(1)
        return lambda: output.copy_(step(given)), output

    replays = CudaGraphCache(record)

    def ask(key: int) -> None:
        result = replays(key, lambda given: given + 0.5, torch.tensor([float(key)]))
        assert result.item() == key + 0.5

    for key in range(MAX_CUDA_GRAPHS):
        ask(key)
    ask(0)
    ask(MAX_CUDA_GRAPHS)
    ask(0)
    assert len(made) == MAX_CUDA_GRAPHS + 1
    ask(1)
    assert made[-1] == 1
    assert len(made) == MAX_CUDA_GRAPHS + 2


def test_a_tape_refuses_what_a_graph_cannot_record() -> None:
    with pytest.raises(AssertionError, match="waits for the device"):
        FakeGraphCapture()(lambda given: given * float(given.sum()), torch.ones(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, r"device='tpu': allowed is auto, .*cpu"),
        ({"device": "cuda:99"}, r"device='cuda:99': allowed is auto, .*cpu"),
        ({"device": "cpu", "precision": "int8"}, "precision='int8': allowed is auto, fp32, fp16, bf16"),
    ],
)
def test_what_is_not_to_be_had_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TorchBackend(DIMS, make_weights(), **options)


def test_on_the_cpu_it_computes_in_float32_unless_told() -> None:
    backend = make_backend()
    assert (backend.capabilities.device, backend.capabilities.precision) == ("cpu", "fp32")
    assert f"torch {torch.__version__} fp32 on CPU" in backend.capabilities.detail


def test_weights_of_half_precision_are_taken() -> None:
    weights = {name: value.astype(np.float16) for name, value in make_weights().items()}
    for value in weights.values():
        value.flags.writeable = False
    backend = TorchBackend(DIMS, weights, device="cpu", precision="fp16")
    assert backend.encode(make_mel(1)).cross_kv.dtype == torch.float16

"""The streaming encoder of the GPU engine: its history, its masks, and the steps captured over it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tiny_models import DIMS, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from fakes.cuda_graphs import FakeGraphCapture  # noqa: E402
from harken.backends.torch import TorchBackend  # noqa: E402
from harken.backends.torch.streaming_encoder import TorchEncoderState  # noqa: E402

PROMPT = [1, 2, 3]
MEL = make_mel(1)[0]


def make_backend(**options: object) -> TorchBackend:
    return TorchBackend(DIMS, make_weights(), device="cpu", threads=1, **options)


def encode_chunks(
    backend: TorchBackend, state: TorchEncoderState, chunk_frames: int, final_frames: int
) -> Iterator[int]:
    """Encode all whole chunks of `MEL`, and yield the number of positions after each."""
    while 2 * state.final_positions + chunk_frames < MEL.shape[1]:
        first = 2 * state.final_positions
        backend.encode_chunk([state], MEL[None, :, first : first + chunk_frames + 1], final_frames)
        yield state.positions


@pytest.mark.parametrize(("history_frames", "expected"), [(12, [2, 4, 6, 6, 6, 6, 6, 6, 6]), (0, [0] * 9)])
def test_history_stops_growing_at_its_length(history_frames: int, expected: list[int]) -> None:
    state = (backend := make_backend()).open_encoder(history_frames)
    assert [state._past_kv.shape[1] for _ in encode_chunks(backend, state, 12, 4)] == expected


def test_cross_kv_is_projected_for_the_chunk_only(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_backend()
    projected, project = [], backend._model.project_cross_kv
    monkeypatch.setattr(
        backend._model, "project_cross_kv", lambda x: (projected.append(tuple(x.shape[:2])), project(x))[1]
    )
    state = backend.open_encoder(12)
    for _ in encode_chunks(backend, state, 12, 4):
        backend.stream_features([state])
    assert projected == [(1, 6)] * 9


def test_windows_of_equal_length_have_no_mask() -> None:
    backend = make_backend()
    assert backend.encode(make_mel()).lengths is None
    one, other = backend.open_encoder(12), backend.open_encoder(12)
    for state in (one, other, other):
        backend.encode_chunk([state], MEL[None, :, 2 * state.final_positions :][:, :, :13], 8)
    assert backend.stream_features([one]).lengths is None
    assert backend.stream_features([other, other]).lengths is None
    assert backend.stream_features([one, other]).lengths == (6, 10)
    assert backend.stream_features([one, other]).positions == 10


def test_captured_steps_are_reused_by_later_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harken.backends.torch.backend.PAD_MULTIPLE", 10)
    captured, plain = make_backend(graph_capture=FakeGraphCapture), make_backend()
    captured_state, plain_state = captured.open_encoder(12), plain.open_encoder(12)
    captures, positions = [], []
    for count, _ in zip(
        encode_chunks(captured, captured_state, 12, 4), encode_chunks(plain, plain_state, 12, 4), strict=True
    ):
        before = FakeGraphCapture.made
        sessions = [
            backend.open_session(backend.stream_features([state]), [0], DIMS.n_text_ctx, attention=True)
            for backend, state in ((captured, captured_state), (plain, plain_state))
        ]
        for session in sessions:
            session.extend([PROMPT])
        logprobs = [session.extend([[4]]).values.log_softmax(1).numpy() for session in sessions]
        np.testing.assert_allclose(*logprobs, atol=1e-4)
        attention = [session.attention(0) for session in sessions]
        assert attention[0].shape[2] == count
        np.testing.assert_allclose(*attention, atol=1e-5)
        captures.append(FakeGraphCapture.made - before)
        positions.append(count)
        del session, sessions
    assert positions == [6, 8, 10, 12, 14, 16, 18, 20, 22]  # padded to 10, 20 and 24
    assert captures == [2, 0, 0, 2, 0, 0, 0, 0, 2]

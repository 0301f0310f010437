"""What the GPU engine keeps of a stream, and what it computes anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tiny_models import DIMS, make_mel, make_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")

from fakes.cuda_graphs import FakeGraphCapture  # noqa: E402
from harken.backends.torch import TorchBackend  # noqa: E402
from harken.backends.torch.streaming_encoder import TorchEncoderState  # noqa: E402

PROMPT = [1, 2, 3]
SOUND = make_mel(1)[0]


def make_backend(**options: object) -> TorchBackend:
    return TorchBackend(DIMS, make_weights(), device="cpu", threads=1, **options)


def hops(backend: TorchBackend, encoder: TorchEncoderState, window: int, hop: int) -> Iterator[int]:
    """Hear all of `SOUND`, as far as whole windows go, and give the number of positions after each."""
    while 2 * encoder.final_positions + window < SOUND.shape[1]:
        first = 2 * encoder.final_positions
        backend.encode_chunk([encoder], SOUND[None, :, first : first + window + 1], hop)
        yield encoder.positions


def test_history_never_grows_beyond_what_was_asked_for() -> None:
    encoder = (backend := make_backend()).open_encoder(12)
    sizes = [encoder._past_kv.shape[1] for _ in hops(backend, encoder, 12, 4)]
    assert sizes == [2, 4, 6, 6, 6, 6, 6, 6, 6]


def test_without_history_nothing_is_kept() -> None:
    encoder = (backend := make_backend()).open_encoder(0)
    assert {encoder._past_kv.shape[1] for _ in hops(backend, encoder, 12, 4)} == {0}


def test_the_decoder_is_prepared_for_a_window_not_for_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_backend()
    listened, run_encoder = [], backend._model.project_cross_kv
    monkeypatch.setattr(
        backend._model, "project_cross_kv", lambda x: (listened.append(tuple(x.shape[:2])), run_encoder(x))[1]
    )
    encoder = backend.open_encoder(12)
    for _ in hops(backend, encoder, 12, 4):
        backend.stream_features([encoder])
    assert listened == [(1, 6)] * 9


def test_windows_are_only_masked_where_they_differ() -> None:
    backend = make_backend()
    assert backend.encode(make_mel()).lengths is None
    one, other = backend.open_encoder(12), backend.open_encoder(12)
    for encoder in (one, other, other):
        backend.encode_chunk([encoder], SOUND[None, :, 2 * encoder.final_positions :][:, :, :13], 8)
    assert backend.stream_features([one]).lengths is None
    assert backend.stream_features([other, other]).lengths is None
    assert backend.stream_features([one, other]).lengths == (6, 10)
    assert backend.stream_features([one, other]).positions == 10


def test_pasts_are_only_masked_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_backend()
    masks, run_live = [], backend._model.encode_chunk
    monkeypatch.setattr(
        backend._model, "encode_chunk", lambda *given: (masks.append(given[3]), run_live(*given))[1]
    )
    streams = [backend.open_encoder(8) for _ in range(2)]
    window = np.repeat(SOUND[None, :, :13], 2, axis=0)
    backend.encode_chunk(streams, window, 4)
    backend.encode_chunk(streams[:1], window[:1], 4)
    backend.encode_chunk(streams, window, 4)
    backend.encode_chunk(streams, window, 4)
    assert [mask is None for mask in masks] == [True, True, False, True]
    assert np.isinf(masks[2].numpy()[:, 0, 0, :]).sum(axis=1).tolist() == [0, 2]


def test_steps_recorded_for_one_update_serve_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harken.backends.torch.backend.PAD_MULTIPLE", 10)
    taped, plain = make_backend(graph_capture=FakeGraphCapture), make_backend()
    ours, theirs = taped.open_encoder(12), plain.open_encoder(12)
    made, positions = [], []
    for count, _ in zip(hops(taped, ours, 12, 4), hops(plain, theirs, 12, 4), strict=True):
        before = FakeGraphCapture.made
        sessions = [
            backend.open_session(backend.stream_features([encoder]), [0], DIMS.n_text_ctx, attention=True)
            for backend, encoder in ((taped, ours), (plain, theirs))
        ]
        for session in sessions:
            session.extend([PROMPT])
        heard = [session.extend([[4]]).values.log_softmax(1).numpy() for session in sessions]
        np.testing.assert_allclose(*heard, atol=1e-4)
        attention = [session.attention(0) for session in sessions]
        assert attention[0].shape[2] == count
        np.testing.assert_allclose(*attention, atol=1e-5)
        made.append(FakeGraphCapture.made - before)
        positions.append(count)
        del session, sessions
    assert positions == [6, 8, 10, 12, 14, 16, 18, 20, 22]  # filled up to 10, 20 and 24
    assert made == [2, 0, 0, 2, 0, 0, 0, 0, 2]


def test_what_was_gathered_does_not_change_when_more_is_heard() -> None:
    encoder = (backend := make_backend()).open_encoder(12)
    backend.encode_chunk([encoder], SOUND[None, :, :13], 4)
    features = backend.stream_features([encoder])
    before = features.cross_kv.clone()
    for _ in hops(backend, encoder, 12, 4):
        pass
    torch.testing.assert_close(features.cross_kv, before, rtol=0, atol=0)


def test_streams_are_of_the_backend_that_hears_them() -> None:
    from harken.backends.numpy import NumpyBackend

    stranger = NumpyBackend(DIMS, make_weights()).open_encoder(12)
    with pytest.raises(AssertionError, match="this backend's own open_encoder"):
        make_backend().stream_features([stranger])

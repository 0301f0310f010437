"""The GPU engine: steps that are captured once, caches that are used again, nothing that waits for the device."""

import numpy as np
import pytest

from harken.backends.numpy import NumpyBackend
from harken.errors import OptionError, OutOfMemory
from tiny_models import (
    BACKENDS,
    DIMS,
    N_WINDOWS,
    TOKENIZER,
    make_assistant_weights,
    make_mel,
    make_torch_backend,
    make_weights,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from fakes.cuda_graphs import SYNCHRONIZING_OPERATORS, FakeGraphCapture  # noqa: E402
from harken.backends.torch import TorchBackend  # noqa: E402
from harken.backends.torch.model import linear, prepack  # noqa: E402
from harken.backends.torch.static_cache import CAPTURED_STEP_TOKENS, MAX_CUDA_GRAPHS  # noqa: E402

PROMPT = [1, 2, 3]


def make_backend(**options):
    return TorchBackend(DIMS, make_weights(), device="cpu", threads=1, **options)


def open_session(backend, rows=(0,)):
    return backend.open_session(backend.encode(make_mel()), rows, DIMS.n_text_ctx)


def count_captures(work):
    """Count the steps that some work captures."""
    before = FakeGraphCapture.made
    work()
    return FakeGraphCapture.made - before


def log_probabilities(logits):
    return logits.values.log_softmax(1).numpy()


def decode(backend, rows, *tokens, positions=24):
    """Open a session, read the given tokens in every row, and drop it."""
    features = backend.encode(make_mel()[:, :, : 2 * positions])
    session = backend.open_session(features, rows, DIMS.n_text_ctx)
    for new in tokens:
        session.extend([new] * len(rows))


def test_step_is_captured_once_for_all_sessions_of_its_shape():
    backend = make_backend(graph_capture=FakeGraphCapture)
    assert count_captures(lambda: backend.encode(make_mel())) == 1
    assert count_captures(lambda: decode(backend, [0], PROMPT, [4], [5])) == 2  # 3 tokens, and 1
    assert count_captures(lambda: decode(backend, [3], PROMPT, [4], [5])) == 0
    assert count_captures(lambda: decode(backend, [0, 1], PROMPT, [4])) == 2
    assert count_captures(lambda: decode(backend, [0, 0], PROMPT, [4])) == 2
    assert count_captures(lambda: decode(backend, [2, 3], PROMPT, [4])) == 0
    assert count_captures(lambda: decode(backend, [0], [4], positions=10)) == 1  # a shorter window
    assert count_captures(lambda: decode(backend, [0], [7] * (CAPTURED_STEP_TOKENS[-1] + 1))) == 0
    assert count_captures(lambda: decode(make_backend(), [0], PROMPT, [4])) == 0  # on the CPU


def test_longer_past_needs_another_capture(monkeypatch):
    monkeypatch.setattr("harken.backends.torch.static_cache.MIN_PAST_POSITIONS", 8)
    captured, plain = (
        open_session(backend, [0, 2])
        for backend in (make_backend(graph_capture=FakeGraphCapture), make_backend())
    )
    for token in range(DIMS.n_text_ctx):
        actual, expected = (
            log_probabilities(session.extend([[token], [token + 100]])) for session in (captured, plain)
        )
        np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_reused_cache_does_not_leak_an_earlier_session():
    backend = make_backend(graph_capture=FakeGraphCapture)
    session = open_session(backend)
    expected = log_probabilities(session.extend([PROMPT]))
    session._cache.kv_cache.kv.fill_(torch.nan)
    del session
    again = open_session(backend)
    np.testing.assert_allclose(log_probabilities(again.extend([PROMPT])), expected, atol=1e-4)


def test_next_step_does_not_overwrite_logits():
    session = open_session(make_backend(graph_capture=FakeGraphCapture))
    session.extend([PROMPT])
    logits = session.extend([[4]])
    before = logits.values.clone()
    session.extend([[5]])
    torch.testing.assert_close(logits.values, before, rtol=0, atol=0)


@pytest.mark.parametrize(("small", "kept"), [(False, [3, 4]), (True, [4])])
def test_pool_keeps_few_idle_caches_and_one_on_a_small_device(monkeypatch, small, kept):
    if small:
        monkeypatch.setattr("harken.backends.torch.backend.memory_bytes", lambda device: 0)
    backend = make_backend()
    for rows in ([0], [0, 1], [0, 0], [0, 1, 2], [0] * 4):
        decode(backend, rows, [1])
    assert [cache.cache_rows for cache in backend._cache_pool._idle] == kept


@pytest.mark.parametrize("method", ["encode", "allocate_cache", "decode"])
def test_batch_that_does_not_fit_is_an_error_of_one_line(monkeypatch, method):
    def fail(*given, **options):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(f"harken.backends.torch.model.WhisperModel.{method}", fail)
    with pytest.raises(OutOfMemory, match=r"not enough memory for .*(windows|rows|a step)"):
        decode(make_backend(), [0, 1], [1])


def test_graphs_are_kept_up_to_a_number():
    session = open_session(make_backend(graph_capture=FakeGraphCapture))
    cache = session._cache._cuda_graphs
    captured = []

    def run(key):
        cache(key, lambda x: captured.append(key) or x + 0.5, torch.tensor([float(key)]))

    for key in (*range(MAX_CUDA_GRAPHS), 0, MAX_CUDA_GRAPHS, 0):
        run(key)
    assert captured == [*range(MAX_CUDA_GRAPHS + 1)]
    run(1)  # which was used least recently
    assert captured[-1] == 1


def test_drafts_of_any_length_use_few_captured_steps():
    session = open_session(make_backend(graph_capture=FakeGraphCapture))
    session.extend([PROMPT])

    def draft():
        for width in [*range(1, 18), *range(17, 0, -1)]:
            assert len(session.extend([[65] * width], last_n=width)) == width
            session.rewind([len(PROMPT)])

    assert count_captures(draft) <= len(CAPTURED_STEP_TOKENS) == 6


class WaitProbe(TorchDispatchMode):
    """A probe of the operators that bring a number to the host."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += {func.overloadpacket.__name__} & SYNCHRONIZING_OPERATORS
        return func(*args, **(kwargs or {}))


def test_host_does_not_wait_before_tokens_are_chosen():
    session = open_session(make_backend(), range(N_WINDOWS))
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


# --- streams -----------------------------------------------------------------------------------------------

MEL = make_mel(1)[0]


def encode_chunks(backend, state, chunk_frames, final_frames):
    """Encode all whole chunks of `MEL`, and yield the number of positions after each."""
    while 2 * state.final_positions + chunk_frames < MEL.shape[1]:
        first = 2 * state.final_positions
        backend.encode_chunk([state], MEL[None, :, first : first + chunk_frames + 1], final_frames)
        yield state.positions


def test_history_of_a_stream_stops_growing_at_its_length():
    state = (backend := make_backend()).open_encoder(12)
    lengths = [state.past_kv.shape[1] for _ in encode_chunks(backend, state, 12, 4)]
    assert lengths == [2, 4, 6, 6, 6, 6, 6, 6, 6]


def test_captured_steps_are_reused_by_later_updates(monkeypatch):
    monkeypatch.setattr("harken.backends.torch.backend.PAD_MULTIPLE", 10)
    backends = make_backend(graph_capture=FakeGraphCapture), make_backend()
    states = [backend.open_encoder(12) for backend in backends]
    streams = [encode_chunks(backend, state, 12, 4) for backend, state in zip(backends, states, strict=True)]
    captures, positions = [], []
    for count, _ in zip(*streams, strict=True):
        before = FakeGraphCapture.made
        logprobs, attention = [], []
        for backend, state in zip(backends, states, strict=True):
            features = backend.stream_features([state])
            session = backend.open_session(features, [0], DIMS.n_text_ctx, attention=True)
            session.extend([PROMPT])
            logprobs.append(log_probabilities(session.extend([[4]])))
            attention.append(session.attention(0))
            del session
        np.testing.assert_allclose(*logprobs, atol=1e-4)
        assert attention[0].shape[2] == count
        np.testing.assert_allclose(*attention, atol=1e-5)
        captures.append(FakeGraphCapture.made - before)
        positions.append(count)
    assert positions == [6, 8, 10, 12, 14, 16, 18, 20, 22]  # padded to 10, 20 and 24
    assert captures == [2, 0, 0, 2, 0, 0, 0, 0, 2]


# --- what it loads and refuses, and its precisions ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, r"device='tpu': allowed is auto, .*cpu"),
        ({"device": "cuda:99"}, r"device='cuda:99': allowed is auto, .*cpu"),
        ({"device": "cpu", "precision": "int8"}, "precision='int8': allowed is auto, fp32, fp16, bf16"),
    ],
)
def test_unavailable_device_or_precision_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        TorchBackend(DIMS, make_weights(), **options)


def test_read_only_half_precision_weights_are_loaded():
    weights = {name: value.astype(np.float16) for name, value in make_weights().items()}
    for value in weights.values():
        value.flags.writeable = False
    backend = TorchBackend(DIMS, weights, device="cpu", precision="fp16")
    assert backend.encode(make_mel(1)).cross_kv.dtype == torch.float16


@pytest.mark.parametrize(("main_precision", "precision"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_assistant_may_have_another_precision(main_precision, precision):
    main = make_torch_backend(main_precision, DIMS, make_weights())
    assistant = make_torch_backend(precision, DIMS.without_encoder(), make_assistant_weights())
    session = assistant.open_session(
        assistant.reuse_encoder_output(main.encode(make_mel())), [1], DIMS.n_text_ctx
    )
    reference = NumpyBackend(DIMS, make_assistant_weights())
    plain = reference.open_session(reference.encode(make_mel()), [1], DIMS.n_text_ctx)
    prompt = TOKENIZER.sot_sequence("en")
    expected = plain.extend([prompt]).values
    difference = session.extend([prompt]).values.cpu().numpy() - expected
    assert np.abs(difference).max() <= BACKENDS["torch-bf16"].tolerance * expected.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, 68])
def test_prepacked_matrices_multiply_like_plain_ones(dtype, rows):
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in [(2, rows, 96), (160, 96), 160]
    )
    weight /= 96**0.5
    expected = x.double() @ weight.double().T + bias.double()
    actual = linear(x, prepack(weight), bias)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)

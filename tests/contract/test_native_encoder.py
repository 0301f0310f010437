"""The native encoder beside the reference backend, and the same bits for whatever is encoded together or before."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from checkpoint_files import write_huggingface
from harken.audio import load_audio, log_mel
from harken.backend_factory import BackendFactory
from harken.backends.native import backend as native_backend
from harken.backends.native.library import INSTRUCTION_SET_VARIABLE, instruction_sets, unavailable_reason
from harken.backends.numpy import NumpyBackend
from harken.checkpoints import open_checkpoint
from real_models import EXAMPLE, recognizer
from tiny_models import DIMS, make_backend, make_weights

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or "")

ENCODER_DIMS = replace(DIMS, n_mels=18, n_audio_ctx=150)
"""The tiny model with longer windows, and bands that do not fill whole vectors."""
LARGEST_ERRORS = {"int8": (4e-2, 2e-1), "int16": (1e-3, 4e-3), "fp32": (2e-6, 1e-5)}
"""The norm of the error relative to that of the output, and the largest single one relative to the root mean square."""
SETS = () if unavailable_reason() else instruction_sets()
FRAMES = (2, 4, 30, 96, 98, 146, 2 * ENCODER_DIMS.n_audio_ctx)


def draw_mel(n_windows, frames, seed=0):
    shape = n_windows, ENCODER_DIMS.n_mels, frames
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="module", params=LARGEST_ERRORS)
def precision(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_backend, "LEAST_STATE_OF_INT8", 0)
        yield str(request.param)


def open_native(cache, precision, **options):
    return make_backend(f"native-{precision}", cache, dims=ENCODER_DIMS, **options)


@pytest.fixture(scope="module")
def backend(cache, precision):
    return open_native(cache, precision)


@pytest.fixture(scope="module")
def reference():
    return NumpyBackend(ENCODER_DIMS, make_weights(dims=ENCODER_DIMS))


def check_errors(actual, expected, precision):
    error, size = actual - expected, np.sqrt((expected**2).mean())
    largest, largest_single = LARGEST_ERRORS[precision]
    assert np.sqrt((error**2).mean()) <= largest * size
    assert np.abs(error).max() <= largest_single * size


def encode(backend, mel):
    """Encode windows together; return of each the encoder's output, and the packed keys and values."""
    return [(window.encoder_output, window.memory) for window in backend.encode(mel).windows]


def assert_same_bits(actual, expected, message=""):
    for one, other in zip(chain(*actual), chain(*expected), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=message)


@pytest.mark.parametrize(
    ("frames", "loudness"), [*((frames, 1) for frames in FRAMES), (98, 0), (98, 1e-3), (98, 30)]
)
def test_encoder_output_is_that_of_the_reference(backend, reference, frames, loudness, precision):
    """With the same relative error, whether a window is loud, quiet or empty."""
    mel = np.float32(loudness) * draw_mel(2, frames)
    actual = backend.encoder_output(backend.encode(mel))
    expected = reference.encoder_output(reference.encode(mel))
    assert actual.shape == expected.shape == (2, frames // 2, ENCODER_DIMS.n_audio_state)
    assert actual.dtype == np.float32
    check_errors(actual, expected, precision)


def test_layers_of_low_rank_are_two_products_and_less_to_read(tmp_path, precision):
    """Those of the first layer, as in lite-whisper; the ranks of the second are so high that one is less work."""
    dims = replace(ENCODER_DIMS, n_audio_state=128, n_audio_head=4, n_text_state=128, n_text_head=4)
    weights, rng = make_weights(dims=dims), np.random.default_rng(1)
    for name in [name for name, values in weights.items() if ".blocks." in name and values.ndim == 2]:
        if name.startswith("encoder."):
            (rows, columns), rank = weights.pop(name).shape, 40 if name.startswith("encoder.blocks.0.") else 90
            for number, shape in ((1, (columns, rank)), (2, (rank, rows))):
                weights[f"{name}{number}"] = (
                    rng.standard_normal(shape, np.float32) / np.float32(shape[0]) ** 0.5
                )
            weights[name.replace(".weight", ".bias")] = rng.standard_normal(rows, np.float32)
    folder = write_huggingface(tmp_path / "lite", dims, weights, config={"model_type": "lite-whisper"})
    checkpoint, mel = open_checkpoint(folder), draw_mel(2, 98)
    engine = BackendFactory(backend="native", precision=precision, threads=2, cache=tmp_path / "two")
    backend = engine.make_backend(checkpoint)
    reference = NumpyBackend(dims, checkpoint.weights)
    expected = reference.encoder_output(reference.encode(mel))
    check_errors(backend.encoder_output(backend.encode(mel)), expected, precision)
    make_backend(f"native-{precision}", tmp_path / "one", checkpoint.weights, dims=dims)
    two, one = (
        sum(file.stat().st_size for file in (tmp_path / cache).rglob("*.packed")) for cache in ("two", "one")
    )
    assert two < one


def test_number_that_is_not_finite_makes_its_whole_window_nan_and_no_other(backend):
    expected = encode(backend, draw_mel(3, 98))
    for number in (np.nan, np.inf, -np.inf):
        mel = draw_mel(3, 98)
        mel[1, 5, 40] = number
        actual = encode(backend, mel)
        assert np.isnan(actual[1][0]).all()
        assert_same_bits(actual[::2], expected[::2])


def test_bits_of_a_window_depend_on_no_window_beside_or_before_it(backend, cache, precision):
    """Nor on other threads, on a session between, or on the layout of the mel in memory."""
    mels = [draw_mel(2, frames, seed=frames) for frames in FRAMES]
    expected = [
        [encode(open_native(cache, precision), window[None])[0] for window in windows] for windows in mels
    ]
    with ThreadPoolExecutor(4) as threads:
        each = threads.map(lambda mel: encode(backend, mel), mels * 2)
        for together, alone in zip(each, expected * 2, strict=True):
            assert_same_bits(together, alone)
    backend.encode(np.full_like(mels[-1], np.nan))
    session = backend.open_session(backend.encode(mels[4]), [0, 1], 30)
    for mel, alone in zip(mels[::-1] + mels, expected[::-1] + expected, strict=True):
        session.extend([[65, 66], [67]], 2)
        assert_same_bits(encode(backend, mel[::-1]), alone[::-1])


def test_threads_and_instruction_sets_change_no_bit(backend, cache, monkeypatch, precision):
    mels = [draw_mel(2, frames) for frames in FRAMES]
    expected = [encode(backend, mel) for mel in mels]
    for instruction_set, threads in [(SETS[0], 2), (SETS[0], 3), *((name, 1) for name in SETS[1:])]:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, instruction_set)
        other = open_native(cache, precision, threads=threads)
        for mel, windows in zip(mels, expected, strict=True):
            assert_same_bits(encode(other, mel), windows, f"{instruction_set}, {threads} threads")


@pytest.mark.real
@pytest.mark.slow
def test_published_model_encodes_a_recording_in_16_bits_as_in_float32():
    integers, floats = recognizer("int16").backend, recognizer("fp32").backend
    assert (integers.capabilities.name, floats.capabilities.name) == ("native", "native")
    mel = log_mel(load_audio(EXAMPLE))[None, :, : 2 * integers.dims.n_audio_ctx]
    for frames in (mel.shape[2] // 2 * 2, 498, 96):
        window = np.ascontiguousarray(mel[:, :, :frames])
        actual = integers.encoder_output(integers.encode(window))
        expected = floats.encoder_output(floats.encode(window))
        assert np.linalg.norm(actual - expected) <= LARGEST_ERRORS["int16"][0] * np.linalg.norm(expected)

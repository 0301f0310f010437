"""What encodes windows in the native backend: the library, or a graph where it is faster or the library cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_files import random_weights
from harken.backends.native import backend as native_backend
from harken.backends.native import decoder as native_decoder
from harken.backends.native.library import unavailable_reason
from harken.backends.native.packed_file import PACKED_FILE
from harken.backends.onnx.graph_loader import GraphLoader
from harken.contract import Floats
from harken.types import Dims
from tiny_models import DIMS, make_backend

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or "")

LIBRARY = ("native", "int16")
WITH_OPENVINO = frozenset({"FP32", "BF16"})
WITHOUT_OPENVINO: frozenset[str] = frozenset()
Open = Callable[..., Any]


def make_fitting_weights(dims: Dims) -> dict[str, Floats]:
    return {name: values.astype(np.float32) for name, values in random_weights(dims).items()}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that are loaded during a test."""
    names: list[str] = []
    load = GraphLoader.load

    def note(self: GraphLoader, *parts: Any) -> list[Any]:
        names.extend(part for part in parts if isinstance(part, str))
        return load(self, *parts)

    monkeypatch.setattr(GraphLoader, "load", note)
    return names


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool, frozenset[str]], None]:
    """A function that gives the processor AMX, or not, and OpenVINO's capabilities."""

    def describe(amx: bool, capabilities: frozenset[str]) -> None:
        monkeypatch.setattr(native_backend, "has_amx", lambda: amx)
        monkeypatch.setattr(native_backend, "openvino_capabilities", lambda: capabilities)

    return describe


@pytest.fixture
def open_native(tmp_path: Path) -> Open:
    def open_native(precision: str, dims: Dims = DIMS, **options: Any) -> Any:
        return make_backend(f"native-{precision}", tmp_path, make_fitting_weights(dims), dims=dims, **options)

    return open_native


def encodes(backend: Any) -> bool:
    mel = np.random.default_rng(0).standard_normal((2, backend.dims.n_mels, 20), np.float32)
    return bool(np.isfinite(backend.encode(mel).encoder_output).all())


@pytest.mark.parametrize("amx", [True, False])
@pytest.mark.parametrize("capabilities", [WITH_OPENVINO, WITHOUT_OPENVINO], ids=["OpenVINO", "no OpenVINO"])
@pytest.mark.parametrize("precision", ["int8", "int4", "auto"])
def test_windows_are_encoded_by_a_graph_only_with_amx_and_openvino_and_never_in_int8(
    open_native: Open,
    processor: Callable[[bool, frozenset[str]], None],
    loaded: list[str],
    precision: str,
    capabilities: frozenset[str],
    amx: bool,
) -> None:
    processor(amx, capabilities)
    backend = open_native(precision)
    assert encodes(backend)
    if precision != "int8" and amx and capabilities:
        assert backend.plan.encoder != LIBRARY
        assert loaded == ["encoder"]
    else:
        assert backend.plan.encoder == LIBRARY
        assert not loaded
    assert f"encoder {' '.join(backend.plan.encoder)}, " in backend.capabilities.detail


@pytest.mark.parametrize("precision", ["auto", "int8"])
def test_encoder_that_does_not_fit_the_library_is_a_graph(
    open_native: Open,
    processor: Callable[[bool, frozenset[str]], None],
    loaded: list[str],
    precision: str,
) -> None:
    processor(False, WITHOUT_OPENVINO)
    backend = open_native(precision, replace(DIMS, n_audio_head=8))
    assert encodes(backend)
    assert backend.plan.encoder != LIBRARY
    assert loaded == ["encoder"]


@pytest.mark.parametrize("amx", [True, False])
@pytest.mark.parametrize("shares_encoder", [True, False], ids=["of a whole model", "of a decoder"])
def test_assistant_without_an_encoder_loads_none(
    open_native: Open,
    processor: Callable[[bool, frozenset[str]], None],
    loaded: list[str],
    tmp_path: Path,
    shares_encoder: bool,
    amx: bool,
) -> None:
    processor(amx, WITH_OPENVINO)
    whole = open_native("int8")
    before = {*tmp_path.glob("*")}
    dims = DIMS if shares_encoder else DIMS.without_encoder()
    assistant = open_native("int4", dims, shares_encoder=shares_encoder)
    (new,) = {*tmp_path.glob("*")} - before
    assert (new / PACKED_FILE).exists()
    assert "encoder" not in new.name
    assert not loaded
    mel = np.random.default_rng(0).standard_normal((1, DIMS.n_mels, 20), np.float32)
    session = assistant.open_session(assistant.reuse_encoder_output(whole.encode(mel)), [0], 8)
    assert len(session.extend([[65, 66]])) == 1
    with pytest.raises(AssertionError, match="no encoder"):
        assistant.encode(mel)


@pytest.mark.parametrize("precision", ["auto", "int8"])
@pytest.mark.parametrize("amx", [True, False])
def test_streams_are_encoded_where_windows_are(
    open_native: Open,
    processor: Callable[[bool, frozenset[str]], None],
    loaded: list[str],
    precision: str,
    amx: bool,
) -> None:
    processor(amx, WITH_OPENVINO)
    backend = open_native(precision)
    state = backend.open_encoder(20)
    backend.encode_chunk([state], np.zeros((1, DIMS.n_mels, 20), np.float32), 10)
    assert loaded == (["encoder", "streaming_encoder"] if amx and precision == "auto" else [])
    assert backend.stream_features([state]).n_windows == 1


def test_stream_packed_chunk_by_chunk_is_the_stream_packed_at_once(
    open_native: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions of the look-ahead are packed again; those before the part that changes are not."""
    backend = open_native("int8")
    monkeypatch.setattr(native_decoder, "PART_OF_STREAM", 16)
    noise = np.random.default_rng(0)
    often, once = backend.open_encoder(20), backend.open_encoder(20)
    for n_frames, final_frames in ((9, 0), (17, 10), (17, 4), (23, 16), (17, 0), (17, 16)):
        mel = noise.standard_normal((1, DIMS.n_mels, n_frames)).astype(np.float32)
        for state in (often, once):
            backend.encode_chunk([state], mel, final_frames)
        backend.stream_features([often])
    sessions = [backend.open_session(backend.stream_features([state]), [0], 8) for state in (often, once)]
    one, other = (session.extend([[65, 66, 67]]).top(3) for session in sessions)
    np.testing.assert_array_equal(one, other)

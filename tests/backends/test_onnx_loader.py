"""The loading of graphs: the precision that the encoder gets where the processor has less than it reports."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harken.backends.onnx import OnnxBackend, graph_loader, runtimes
from harken.backends.onnx.runtimes import OnnxRuntimeGraph
from harken.errors import OutOfMemory
from tiny_models import DIMS, make_mel, make_weights


class WithoutBfloat16(OnnxRuntimeGraph):
    """OpenVINO where it reports bfloat16 arithmetic, but cannot compile for it."""

    error: Exception = RuntimeError("Supported primitive descriptors list is empty")

    def __init__(self, path: Path, threads: int, precision: str) -> None:
        if precision == "bf16":
            raise self.error
        super().__init__(path, threads)


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> type[WithoutBfloat16]:
    monkeypatch.setattr(runtimes, "openvino_capabilities", lambda: frozenset({"BF16", "FP32"}))
    monkeypatch.setattr(runtimes, "bfloat16_is_faster", lambda: True)
    monkeypatch.setattr(graph_loader, "OpenVinoGraph", WithoutBfloat16)
    return WithoutBfloat16


@pytest.mark.parametrize("precision", ["auto", "int8", "int4"])
def test_encoder_computes_in_float32_where_bfloat16_fails(
    tmp_path: Path, openvino: type[WithoutBfloat16], precision: str
) -> None:
    backend = OnnxBackend(DIMS, make_weights(), "d", precision=precision, threads=1, cache=tmp_path)
    assert backend.plan.encoder == ("openvino", "f32")
    assert "encoder openvino f32" in backend.capabilities.detail
    backend.encode_chunk([backend.open_encoder(8)], make_mel(1)[:, :, :12], 8)


def test_bfloat16_that_was_asked_for_fails(tmp_path: Path, openvino: type[WithoutBfloat16]) -> None:
    with pytest.raises(RuntimeError, match="primitive descriptors"):
        OnnxBackend(DIMS, make_weights(), "d", precision="bf16", threads=1, cache=tmp_path)


@pytest.mark.parametrize("error", [RuntimeError("cannot be opened"), OutOfMemory("std::bad_alloc")], ids=str)
def test_other_errors_do_not_change_the_precision(
    tmp_path: Path, openvino: type[WithoutBfloat16], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(openvino, "error", error)
    with pytest.raises(type(error), match=str(error).rpartition(":")[2]):
        OnnxBackend(DIMS, make_weights(), "d", precision="auto", threads=1, cache=tmp_path)


def test_lack_of_threads_does_not_change_the_precision(
    tmp_path: Path, openvino: type[WithoutBfloat16], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(thread: threading.Thread) -> None:
        calls.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(OutOfMemory, match="can't start new thread"):
        OnnxBackend(DIMS, make_weights(), "d", precision="auto", threads=1, cache=tmp_path)
    assert calls == ["harken-loading"]

"""The errors with which runtimes report that memory is short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from harken.backend_factory import BackendFactory
from harken.backends.loading import reporting_memory
from harken.backends.onnx import graph_loader
from harken.checkpoints import open_checkpoint
from harken.errors import CheckpointError, OutOfMemory

REPORTS = [
    MemoryError(),
    MemoryError("Unable to allocate 76.0 MiB for an array with shape (51864, 384) and data type float32"),
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: std::bad_alloc"
    ),
    RuntimeError("Check 'ptr' failed at cpu_memory.cpp:257:\nFailed to allocate 1228800 bytes of memory\n"),
    RuntimeError("plugin.cpp:59: Resource temporarily unavailable"),
    RuntimeError("can't start new thread"),
    ImportError("state.so: failed to map segment from shared object"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000 bytes"),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
]


@pytest.mark.parametrize("report", REPORTS, ids=str)
def test_every_report_becomes_one_error_of_one_line(report: Exception) -> None:
    expected = pytest.raises(OutOfMemory, match="not enough memory for loading x")
    with expected as caught, reporting_memory("loading x"):
        raise report
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.__cause__ is report


@pytest.mark.parametrize(
    "error", [ValueError("of another kind"), CheckpointError("x.pt: cannot allocate a name")]
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, reporting_memory("loading x"):
        raise error
    assert caught.value is error


def test_model_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(graph_loader, "OnnxRuntimeGraph", fail)
    model = files.write_openai(tmp_path / "model.pt", files.TINY, files.random_weights())
    with pytest.raises(OutOfMemory, match=r"not enough memory for loading .*model\.pt \(bad_alloc\)"):
        BackendFactory(cache=tmp_path / "cache").make_backend(open_checkpoint(model))


def test_computing_without_memory_is_the_same_error(tmp_path: Path) -> None:
    from harken.backends.onnx.graph_files import MODEL_FILE, write_graph
    from harken.backends.onnx.graph_loader import probe_graph
    from harken.backends.onnx.runtimes import OnnxRuntimeGraph

    write_graph(probe_graph(), tmp_path)
    graph = OnnxRuntimeGraph(tmp_path / MODEL_FILE, threads=1)

    class Full:
        def __getattr__(self, name: str) -> object:
            return lambda *given: self

        def run_with_iobinding(self, binding: object) -> None:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 4096")

    graph._session = Full()
    with pytest.raises(OutOfMemory, match=r"not enough memory for computing \(Failed to allocate\)"):
        graph({"x": np.zeros((1, 256), np.uint8)}, {"sums": np.zeros((1, 64), np.float32)})

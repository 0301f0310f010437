"""The two runtimes that execute graphs, behind one interface: named input arrays, named output arrays.

The choice between them was measured: see docs/decisions/runtimes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harken.backends.memory import reporting_memory
from harken.backends.onnx.telemetry import release_openvino_telemetry
from harken.errors import BackendUnavailable

Arrays = Mapping[str, NDArray[Any]]

COMPUTING = "computing"

BoundGraph = Callable[[Arrays, Arrays], None]
"""A function that runs a graph over inputs and writes into outputs, C-contiguous float32 arrays by name."""


class Graph(Protocol):
    """A compiled graph; calling it computes all given outputs from all inputs."""

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None: ...


class BindableGraph(Graph, Protocol):
    """A compiled graph that can bind arrays which stay at the same address."""

    def bind(self, inputs: Arrays, outputs: Arrays) -> BoundGraph:
        """Bind some inputs and outputs, and return a function that takes all others.

        An array may be bound as an input and as an output if the graph reads nothing of it after writing to it.
        """
        ...


class OnnxRuntimeGraph:
    """A graph in ONNX Runtime on the CPU.

    Parameters
    ----------
    path : Path
        An ONNX file.
    threads : int
        Threads of one run.
    """

    def __init__(self, path: Path, threads: int) -> None:
        ort = import_onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # Idle threads must not spin while the other runtime computes.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with reporting_memory(f"loading {path}"):
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._outputs = {output.name for output in self._session.get_outputs()}

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        self.bind({}, {})(inputs, outputs)

    def bind(self, inputs: Arrays, outputs: Arrays) -> BoundGraph:
        binding = self._session.io_binding()
        bound = inputs, outputs  # `run` keeps them alive; the binding does not

        def bind_arrays(inputs: Arrays, outputs: Arrays) -> None:
            for name, array in inputs.items():
                binding.bind_cpu_input(name, array)
            for name, array in outputs.items():
                binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

        def run(inputs: Arrays, outputs: Arrays) -> None:
            for unused in self._outputs - outputs.keys() - bound[1].keys():
                binding.bind_output(unused, "cpu")
            bind_arrays(inputs, outputs)
            with reporting_memory(COMPUTING):
                self._session.run_with_iobinding(binding)

        bind_arrays(*bound)
        return run


class OpenVinoGraph:
    """A graph in OpenVINO on the CPU.

    Parameters
    ----------
    path : Path
        An ONNX file.
    threads : int
        Threads of one run.
    precision : {"f32", "bf16"}
        Precision of the computation; inputs and outputs are float32 either way.
    """

    def __init__(self, path: Path, threads: int, precision: str) -> None:
        openvino = import_openvino()
        self._tensor = openvino.Tensor
        core = openvino.Core()
        config = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            # A pinned thread waits for its core while another process has it; on a quiet machine it gains nothing.
            "ENABLE_CPU_PINNING": False,
        }
        with reporting_memory(f"loading {path}"):
            self._request = core.compile_model(str(path), "CPU", config).create_infer_request()
        self._request_lock = Lock()

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        # A request serves one thread at a time; ONNX Runtime's sessions serve any number.
        with self._request_lock:
            for name, array in outputs.items():
                self._request.set_tensor(name, self._tensor(array, shared_memory=True))
            with reporting_memory(COMPUTING):
                self._request.infer(inputs, share_inputs=True, share_outputs=True)


def import_onnxruntime() -> Any:
    """Import ONNX Runtime, or raise an error with the command that installs it."""
    try:
        with reporting_memory("importing ONNX Runtime"):
            import onnxruntime
    except ImportError as error:
        raise BackendUnavailable(
            f"ONNX Runtime cannot be imported ({error}): pip install onnxruntime"
        ) from error
    return onnxruntime


def import_openvino() -> Any:
    """Import OpenVINO, or raise an error with the command that installs it."""
    try:
        with reporting_memory("importing OpenVINO"):
            import openvino
    except ImportError as error:
        raise BackendUnavailable(f"OpenVINO cannot be imported ({error}): pip install openvino") from error
    release_openvino_telemetry()
    return openvino

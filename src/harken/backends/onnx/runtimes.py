"""The two runtimes that execute graphs, behind one call: arrays in by name, arrays out by name.

Which runtime executes which graph is measured, not assumed: see docs/decisions/runtimes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harken.errors import BackendUnavailable

Arrays = Mapping[str, NDArray[Any]]


BoundGraph = Callable[[Arrays, Arrays], None]
"""Run a graph over inputs, by name, and compute outputs where they are wanted: C-contiguous float32 arrays by name."""


class Graph(Protocol):
    """A compiled graph; calling it is a `Run` over all inputs and outputs."""

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None: ...


class BindableGraph(Graph, Protocol):
    """A compiled graph that can be told once about arrays that stay where they are."""

    def bind(self, inputs: Arrays, outputs: Arrays) -> BoundGraph:
        """Take some inputs and outputs from now on, and return what runs over them and all others.

        An array may be both, where the graph reads nothing of it after having written.
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
        # Idle workers must not spin while the other runtime computes.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._outputs = {output.name for output in self._session.get_outputs()}

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        self.bind({}, {})(inputs, outputs)

    def bind(self, inputs: Arrays, outputs: Arrays) -> BoundGraph:
        binding = self._session.io_binding()
        bound = inputs, outputs  # kept alive by `run`, which the binding does not see to

        def bind_arrays(inputs: Arrays, into: Arrays) -> None:
            for name, array in inputs.items():
                binding.bind_cpu_input(name, array)
            for name, array in into.items():
                binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

        def run(inputs: Arrays, into: Arrays) -> None:
            for unused in self._outputs - into.keys() - bound[1].keys():
                binding.bind_output(unused, "cpu")
            bind_arrays(inputs, into)
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
        In which to compute; inputs and outputs are float32 either way.
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
        }
        self._request = core.compile_model(str(path), "CPU", config).create_infer_request()
        self._request_lock = Lock()

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        with (
            self._request_lock
        ):  # a request serves one thread at a time; ONNX Runtime's sessions serve any number
            for name, array in outputs.items():
                self._request.set_tensor(name, self._tensor(array, shared_memory=True))
            self._request.infer(inputs, share_inputs=True, share_outputs=True)


def import_onnxruntime() -> Any:
    """Import ONNX Runtime, or say how to install it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailable(
            f"ONNX Runtime cannot be imported ({error}): pip install onnxruntime"
        ) from error
    return onnxruntime


def import_openvino() -> Any:
    """Import OpenVINO, or say how to install it."""
    try:
        import openvino
    except ImportError as error:
        raise BackendUnavailable(f"OpenVINO cannot be imported ({error}): pip install openvino") from error
    return openvino

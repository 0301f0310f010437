"""The two runtimes that execute graphs, behind one call: arrays in by name, arrays out by name.

Which runtime executes which graph is measured, not assumed: see docs/decisions/runtimes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harken.errors import BackendUnavailable

Arrays = Mapping[str, NDArray[Any]]


class Graph(Protocol):
    """A compiled graph."""

    def __call__(self, inputs: Arrays, into: Arrays) -> Arrays:
        """Run once and return the outputs, by name.

        Those that `into` names are computed in place there, which saves a copy; others are new.

        Parameters
        ----------
        inputs, into : mapping of str to ndarray
            C-contiguous; those of `into` float32 and of the right shapes. An array may be in both, where the graph
            reads nothing of it after having written.
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
        self._outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Arrays, into: Arrays) -> Arrays:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        new = [name for name in self._outputs if name not in into]
        for name in new:
            binding.bind_output(name, "cpu")
        for name, array in into.items():
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        self._session.run_with_iobinding(binding)
        return {
            **into,
            **{name: value.numpy() for name, value in zip(new, binding.get_outputs(), strict=False)},
        }


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
        self._free = Lock()

    def __call__(self, inputs: Arrays, into: Arrays) -> Arrays:
        with self._free:  # a request serves one thread at a time; ONNX Runtime's sessions serve any number
            for name, array in into.items():
                self._request.set_tensor(name, self._tensor(array, shared_memory=True))
            self._request.infer(inputs, share_inputs=True, share_outputs=True)
        return into


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

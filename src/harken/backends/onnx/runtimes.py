"""Graphs as files, and the two runtimes that execute them, behind one interface, chosen for this machine.

Measured in docs/decisions/runtimes.md: OpenVINO is fastest at the encoder, a large computation of fixed shape, and
ONNX Runtime at the decoder, whose steps are short and whose shapes vary. OpenVINO's bfloat16 decoder takes longer than
ONNX Runtime's in float32, so "bf16" applies to the encoder only.

OpenVINO reports its import to a statistics service and keeps a client id in the home folder, and ONNX Runtime keeps a
device id there and reports to its maker. Both do so while they are imported, so they are imported here only, after that
was turned off: harken sends nothing. `tests/cli/test_privacy.py` watches every command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from harken.backends.loading import reporting_memory
from harken.contract import Arrays
from harken.errors import BackendUnavailable, OptionError, importing
from harken.store import stored_files

if TYPE_CHECKING:
    from onnx import ModelProto

MODEL_FILE, DATA_FILE = "model.onnx", "model.data"
OPENVINO_TELEMETRY = "openvino_telemetry"
"""The package that reports; without it OpenVINO takes a stub that does nothing, for the rest of the process."""
PRECISIONS = ("auto", "fp32", "bf16", "int8")
DRAFT_PRECISION = "int4"
"""Too coarse to transcribe with, but a third faster for an assistant, whose tokens are all verified."""
PROCESSOR_DESCRIPTION = Path("/proc/cpuinfo")

COMPUTING = "computing"

Graph = Callable[[Arrays, Arrays], None]
"""A function that runs a compiled graph over inputs and writes into outputs, C-contiguous float32 arrays by name."""


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A graph whose large weights are not in its model.

    Copying them into it would take several times the memory, and would keep a signal waiting for seconds.

    Attributes
    ----------
    model : ModelProto
        The model; its large weights say where in `DATA_FILE` they are.
    weights : sequence of ndarray
        These weights, C-contiguous, in the order of the file.
    """

    model: ModelProto
    weights: Sequence[NDArray[Any]]


def stored_graph(key: str, build: Callable[[], BuiltGraph], root: Path | None) -> Path:
    """Return the path of the ONNX file under `key` (see `stored_files`); build it first if it is missing or damaged."""
    built = cache(build)
    folder = stored_files(key, (MODEL_FILE, DATA_FILE), lambda folder: write_graph(built(), folder), root)
    return folder / MODEL_FILE


def write_graph(graph: BuiltGraph, folder: Path) -> None:
    """Write the files of a graph to a folder, and check that all of it is there.

    Raises
    ------
    OSError
        If a file cannot be written, or does not hold what was written.
    """
    model = graph.model.SerializeToString()
    with (folder / DATA_FILE).open("wb") as file:
        for weight in graph.weights:
            file.write(weight.data)
    (folder / MODEL_FILE).write_bytes(model)
    n_bytes = {DATA_FILE: sum(weight.nbytes for weight in graph.weights), MODEL_FILE: len(model)}
    for name, size in n_bytes.items():
        if (folder / name).stat().st_size != size:
            raise OSError(f"{name} was not written whole")


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

    def bind(self, inputs: Arrays, outputs: Arrays) -> Graph:
        """Bind arrays that stay at the same address, and return a function that takes all other inputs and outputs.

        An array may be bound as an input and as an output if the graph reads nothing of it after writing to it.
        """
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
    """Import ONNX Runtime, which then reports to nobody."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with importing("onnx", "backend onnx"), reporting_memory("importing ONNX Runtime"):
        import onnxruntime
    return onnxruntime


def import_openvino() -> Any:
    """Import OpenVINO, which then reports to nobody; the user's own code may import its telemetry afterwards."""
    # `None` makes an import fail (docs.python.org, "The import system"), which the type of `sys.modules` does not know.
    modules = cast(dict[str, ModuleType | None], sys.modules)
    modules.setdefault(OPENVINO_TELEMETRY, None)
    try:
        with importing("onnx", "backend onnx"), reporting_memory("importing OpenVINO"):
            import openvino
    finally:
        if modules.get(OPENVINO_TELEMETRY, ...) is None:
            modules.pop(OPENVINO_TELEMETRY, None)  # another thread may be as far
    return openvino


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePlan:
    """A runtime and its precision for the encoder and for the decoder."""

    precision: str
    encoder: tuple[str, str]
    decoder: tuple[str, str]

    def __str__(self) -> str:
        return f"encoder {' '.join(self.encoder)}, decoder {' '.join(self.decoder)}"


def make_runtime_plan(precision: str) -> RuntimePlan:
    """Choose runtimes and precisions for this machine.

    Raises
    ------
    OptionError
        If the precision is unknown, or is bf16 and the processor has no bfloat16 arithmetic.
    """
    if precision not in (*PRECISIONS, DRAFT_PRECISION):
        raise OptionError("precision", precision, ", ".join(PRECISIONS))
    cpu_capabilities = openvino_capabilities()
    encoder = ("openvino", "f32") if cpu_capabilities else ("onnxruntime", "fp32")
    if "BF16" in cpu_capabilities and (precision == "bf16" or (precision != "fp32" and bfloat16_is_faster())):
        encoder = ("openvino", "bf16")
    if precision == "bf16" and encoder[1] != "bf16":
        allowed = "fp32 or int8: bf16 takes OpenVINO and a processor with bfloat16 arithmetic"
        raise OptionError("precision", precision, allowed)
    precision = "int8" if precision == "auto" else precision
    decoder = "onnxruntime", "fp32" if precision == "bf16" else precision
    return RuntimePlan(precision=precision, encoder=encoder, decoder=decoder)


def bfloat16_is_faster(processor_description: Path = PROCESSOR_DESCRIPTION) -> bool:
    """Return False where bfloat16 arithmetic is slower than float32: on Intel's processors without its matrix units.

    Their vector instruction VDPBF16PS does twice the operations of a float32 FMA in four times its time, so bfloat16 is
    fast in AMX tiles only; AMD's vectors are. Where Linux does not describe the processor, no exception is known. A
    measurement would decide for any processor, but a busy one could decide otherwise the next time, and with it the
    text.
    """
    try:
        description = processor_description.read_text(errors="replace")
    except OSError:
        return True
    return "amx_bf16" in description.split() or "GenuineIntel" not in description


def openvino_capabilities() -> frozenset[str]:
    """Return the processor's capabilities as OpenVINO reports them (``BF16`` ...); empty if it is not installed."""
    try:
        core = import_openvino().Core()
    except BackendUnavailable:
        return frozenset()
    return frozenset(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))

"""Loading in threads: results in order, the first error at once, a signal that waits for no runtime; short memory."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from harken.backend_factory import BackendFactory
from harken.backends.loading import Abandoned, load_parts, reporting_memory
from harken.backends.onnx import graph_loader
from harken.backends.onnx.runtimes import MODEL_FILE, OnnxRuntimeGraph, write_graph
from harken.checkpoints import open_checkpoint
from harken.errors import CheckpointError, OutOfMemory

TESTS = Path(__file__).parents[1]
LONG_S = 60.0
WEIGHTS = {"weight": 7}


class Failure(Exception):
    """The error of a function."""


def test_parts_are_loaded_at_the_same_time_and_returned_in_order():
    barrier = threading.Barrier(2, timeout=60)

    def meet(weights):
        barrier.wait()
        return weights["weight"]

    assert load_parts(WEIGHTS, meet, lambda weights: [*weights], meet, meet, meet) == [7, ["weight"], 7, 7, 7]


@pytest.mark.parametrize("error", [Failure, TimeoutError])
def test_first_error_is_raised_while_others_still_run(error):
    go_on, ended = threading.Event(), threading.Event()

    def wait(weights):
        go_on.wait(60)
        ended.set()

    def fail(weights):
        raise error

    with pytest.raises(error):
        load_parts(WEIGHTS, wait, fail)
    assert not ended.is_set()
    go_on.set()


def test_functions_that_nobody_waits_for_end_where_they_next_read_a_weight():
    ended = threading.Event()

    def read_on(weights):
        try:
            while True:
                weights["weight"]
        except Abandoned:
            ended.set()
            raise

    with pytest.raises(KeyError):
        load_parts(WEIGHTS, read_on, lambda weights: weights["missing"])
    assert ended.wait(60)


def run(code, *arguments):
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


INTERRUPTED = f"""
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from harken.backends.onnx import OnnxBackend, graph_loader
from tiny_models import DIMS, StoredWeights, make_weights

first = threading.Lock()

def compile_for_long(*given):
    if first.acquire(blocking=False):  # three graphs are loaded at once, and one signal is sent
        threading.Timer(0.1, send).start()
    time.sleep({LONG_S})

def send():
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

graph_loader.OnnxRuntimeGraph = graph_loader.OpenVinoGraph = compile_for_long
try:
    OnnxBackend(DIMS, StoredWeights(make_weights(), "digest"), precision="fp32", threads=1, cache=Path(sys.argv[1]))
except KeyboardInterrupt:
    print(time.monotonic() - sent, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends signals to groups of processes")
def test_signal_interrupts_loading_while_a_runtime_compiles(tmp_path):
    assert float(run(INTERRUPTED, tmp_path).stdout) < LONG_S / 5


ENDED_DURING_LOADING = """
import threading
from harken.backends.loading import load_parts

def fail(weights):
    raise ValueError("the error")

def load(weights):
    threading.main_thread().join(60)
    print("loaded", flush=True)

load_parts({}, load, fail)
"""


def test_interpreter_does_not_cut_a_thread_that_loads():
    done = run(ENDED_DURING_LOADING)
    assert (done.returncode, done.stdout) == (1, "loaded\n")
    assert done.stderr.strip().endswith("ValueError: the error")


def test_threads_are_abandoned_if_the_next_one_cannot_be_started(monkeypatch):
    started = []

    class Thread(threading.Thread):
        def start(self):
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(self)
            super().start()

    def read_on(weights):
        while True:
            weights["weight"]

    monkeypatch.setattr("harken.backends.loading.Thread", Thread)
    with pytest.raises(OutOfMemory, match=r"for a thread that loads the model \(can't start new thread\)"):
        load_parts(WEIGHTS, read_on, read_on, read_on)
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


# --- errors with which runtimes report that memory is short -------------------------------------------------

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
def test_every_report_becomes_one_error_of_one_line(report):
    expected = pytest.raises(OutOfMemory, match="not enough memory for loading x")
    with expected as caught, reporting_memory("loading x"):
        raise report
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.__cause__ is report


@pytest.mark.parametrize(
    "error", [ValueError("of another kind"), CheckpointError("x.pt: cannot allocate a name")]
)
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as caught, reporting_memory("loading x"):
        raise error
    assert caught.value is error


def test_model_that_does_not_fit_is_named(tmp_path, monkeypatch):
    def fail(*given, **options):
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(graph_loader, "OnnxRuntimeGraph", fail)
    model = files.write_openai(tmp_path / "model.pt", files.TINY, files.random_weights())
    with pytest.raises(OutOfMemory, match=r"not enough memory for loading .*model\.pt \(bad_alloc\)"):
        BackendFactory(cache=tmp_path / "cache").make_backend(open_checkpoint(model))


def test_computing_without_memory_is_the_same_error(tmp_path):
    write_graph(graph_loader.probe_graph(), tmp_path)
    graph = OnnxRuntimeGraph(tmp_path / MODEL_FILE, threads=1)

    class Full:
        def __getattr__(self, name):
            return lambda *given: self

        def run_with_iobinding(self, binding):
            raise RuntimeError("Failed to allocate memory for requested buffer of size 4096")

    graph._session = Full()
    with pytest.raises(OutOfMemory, match=r"not enough memory for computing \(Failed to allocate\)"):
        graph({"x": np.zeros((1, 256), np.uint8)}, {"sums": np.zeros((1, 64), np.float32)})

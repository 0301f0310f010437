"""Loading in threads: results in order, the first error at once, and a signal that does not wait for a runtime."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harken.backends.loading import Abandoned, load_parts

TESTS = Path(__file__).parents[1]
LONG_S = 60.0
WEIGHTS: dict[str, Any] = {"weight": 7}


class Failure(Exception):
    """The error of a function."""


def test_parts_are_loaded_at_the_same_time_and_returned_in_order() -> None:
    barrier = threading.Barrier(2, timeout=60)

    def meet(weights: Any) -> Any:
        barrier.wait()
        return weights["weight"]

    assert load_parts(WEIGHTS, meet, lambda weights: [*weights], meet, meet, meet) == [7, ["weight"], 7, 7, 7]


@pytest.mark.parametrize("error", [Failure, TimeoutError])
def test_first_error_is_raised_while_others_still_run(error: type[Exception]) -> None:
    def fail(weights: Any) -> None:
        raise error

    go_on = threading.Event()
    with pytest.raises(error):
        load_parts(WEIGHTS, lambda weights: go_on.wait(60), fail)
    go_on.set()


def test_functions_that_nobody_waits_for_end_where_they_next_read_a_weight() -> None:
    ended = threading.Event()

    def read_on(weights: Any) -> None:
        try:
            while True:
                weights["weight"]
        except Abandoned:
            ended.set()
            raise

    with pytest.raises(KeyError):
        load_parts(WEIGHTS, read_on, lambda weights: weights["missing"])
    assert ended.wait(60)


INTERRUPTED = f"""
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from harken.backends.onnx import OnnxBackend, graph_loader
from tiny_models import DIMS, make_weights

first = threading.Lock()

class BlockingGraph:
    def __init__(self, *given):
        if first.acquire(blocking=False):  # three graphs are loaded at once, and one signal is sent
            threading.Timer(0.1, send).start()
        time.sleep({LONG_S})

def send():
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

graph_loader.OnnxRuntimeGraph = graph_loader.OpenVinoGraph = BlockingGraph
try:
    OnnxBackend(DIMS, make_weights(), "digest", precision="fp32", threads=1, cache=Path(sys.argv[1]))
except KeyboardInterrupt:
    print(time.monotonic() - sent, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends signals to groups of processes")
def test_signal_interrupts_loading_while_a_runtime_compiles(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, tmp_path], capture_output=True, text=True, timeout=60, check=True
    )
    assert float(done.stdout) < LONG_S / 5


ENDED_DURING_LOADING = """
import threading
from harken.backends.loading import load_parts

failed = threading.Event()

def fail(weights):
    raise ValueError("the error")

def load(weights):
    failed.wait(60)
    print("loaded", flush=True)

try:
    load_parts({}, load, fail)
finally:
    failed.set()
"""


def test_interpreter_does_not_cut_a_thread_that_loads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDED_DURING_LOADING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("ValueError: the error")
    assert done.stdout == "loaded\n"


THREADS_RUN_OUT = """
import os, threading
import harken.backends.loading as module
from harken.backends.loading import Abandoned, load_parts

class Thread(threading.Thread):
    n_started = 0

    def start(self):
        if Thread.n_started == 2:
            raise RuntimeError("can't start new thread")
        Thread.n_started += 1
        super().start()

def load(weights):
    try:
        while True:
            weights["weight"]
    except Abandoned:
        os.write(1, b"abandoned\\n")  # one call, as several threads write
        raise

module.Thread = Thread
try:
    load_parts({"weight": 7}, load, load, load)
except BaseException as error:
    os.write(1, f"{type(error).__name__} {error}\\n".encode())
"""


def test_threads_are_abandoned_if_the_next_one_cannot_be_started() -> None:
    code = THREADS_RUN_OUT
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    reported = "OutOfMemory not enough memory for a thread that loads the model (can't start new thread)"
    assert sorted(map(str.strip, done.stdout.splitlines())) == [reported, "abandoned", "abandoned"]
    assert done.stderr == ""

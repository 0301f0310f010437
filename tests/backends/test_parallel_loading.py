"""Loading in threads: results in order, the first error at once, and a signal that does not wait for a runtime."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harken.backends.onnx.parallel_loading import Abandoned, ParallelLoading

TESTS = Path(__file__).parents[1]
LONG_S = 10.0


class Failure(Exception):
    """The error of a function."""


def fail() -> None:
    raise Failure


def test_results_are_in_order() -> None:
    def slow() -> str:
        time.sleep(0.05)
        return "slow"

    assert ParallelLoading().run(slow, lambda: "fast", lambda: None) == ["slow", "fast", None]


def test_functions_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=60)
    assert sorted(ParallelLoading().run(barrier.wait, barrier.wait, barrier.wait)) == [0, 1, 2]


def test_first_error_is_raised_while_others_still_run() -> None:
    go_on = threading.Event()
    with pytest.raises(Failure):
        ParallelLoading().run(lambda: go_on.wait(60), fail)
    go_on.set()


def test_timeout_error_of_a_function_is_an_error() -> None:
    def time_out() -> None:
        raise TimeoutError("of the function")

    with pytest.raises(TimeoutError, match="of the function"):
        ParallelLoading().run(time_out)


def test_functions_that_nobody_waits_for_end_at_their_next_step() -> None:
    loading, ended = ParallelLoading(), threading.Event()

    def steps() -> None:
        try:
            while True:
                loading.check_not_abandoned()
                time.sleep(0.001)
        except Abandoned:
            ended.set()
            raise

    with pytest.raises(Failure):
        loading.run(steps, fail)
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
import time
from harken.backends.onnx.parallel_loading import ParallelLoading

def fail():
    raise ValueError("the error")

def load():
    time.sleep(0.5)
    print("loaded", flush=True)

ParallelLoading().run(load, fail)
"""


def test_interpreter_does_not_cut_a_thread_that_loads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDED_DURING_LOADING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("ValueError: the error")
    assert done.stdout == "loaded\n"


def test_no_thread_is_left_when_loading_has_ended() -> None:
    ParallelLoading().run(lambda: None, lambda: None)
    deadline = time.monotonic() + 60
    while any(thread.name == "harken-loading" for thread in threading.enumerate()):
        assert time.monotonic() < deadline


THREADS_RUN_OUT = """
import os, sys, threading, time
from harken.backends.onnx.parallel_loading import Abandoned, ParallelLoading

class Thread(threading.Thread):
    n_started = 0

    def start(self):
        if Thread.n_started == 2:
            raise ERROR
        Thread.n_started += 1
        super().start()

def load():
    try:
        while True:
            loading.check_not_abandoned()
            time.sleep(0.001)
    except Abandoned:
        os.write(1, b"abandoned\\n")  # one call, as several threads write
        raise

import harken.backends.onnx.parallel_loading as module
module.Thread = Thread
loading = ParallelLoading()
try:
    loading.run(load, load, load)
except BaseException as error:
    os.write(1, f"{type(error).__name__} {error}\\n".encode())
"""


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            """RuntimeError("can't start new thread")""",
            "OutOfMemory not enough memory for a thread that loads the model (can't start new thread)",
        ),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_threads_are_abandoned_if_the_next_one_cannot_be_started(error: str, reported: str) -> None:
    code = THREADS_RUN_OUT.replace("ERROR", error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(map(str.strip, done.stdout.splitlines())) == sorted([reported, "abandoned", "abandoned"])
    assert done.stderr == ""

"""CUDA graphs: a step is captured once and then replayed, so that the host launches one graph, not a thousand kernels.

A graph is bound to addresses. Its input is copied into a static tensor before each replay, its output stays at the
address that it had during capture, and all else that it reads and writes (weights, `KVCache`) never moves while the
graph lives. Whatever Python decides during capture is fixed; the key of a graph has to cover all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

CAPTURED_STEP_TOKENS = (1, 2, 3, 5, 9, 17)
"""Numbers of new tokens of a captured step: one, and a draft of 0, 1, 2, 4, 8 or 16 tokens behind it.

Other numbers are padded to the next of these, so that drafts of any length need no more graphs; longer steps are not
captured.
"""
MIN_PAST_POSITIONS = 64
"""Smallest number of past positions that a step attends to; the others are its doublings."""
MAX_CUDA_GRAPHS = 32
WARMUP_RUNS = 2

StepFunction = Callable[[Tensor], Tensor]


class GraphCapture(Protocol):
    """A way to capture a step over a static input."""

    def __call__(self, step: StepFunction, static_input: Tensor) -> tuple[Callable[[], None], Tensor]:
        """Capture a step without computing it.

        Returns
        -------
        replay : callable
            Computes the step over the current content of `static_input`.
        output : Tensor
            Holds the result of the last replay.
        """
        ...


class CudaGraphCapture:
    """Capture of CUDA graphs, with one stream and one memory pool for all of them.

    Graphs that share the pool must not be replayed at the same time; a session computes one step at a time.
    """

    _capture_lock = Lock()  # PyTorch allows one capture at a time in a process

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._memory_pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: StepFunction, static_input: Tensor) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with self._capture_lock, torch.cuda.device(static_input.device):
            # Libraries initialise themselves at the first call, which cannot be captured.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARMUP_RUNS):
                    step(static_input)
            torch.cuda.current_stream().wait_stream(self._stream)
            # Other threads may use CUDA meanwhile: the restrictions of capture apply to this thread only.
            with torch.cuda.graph(graph, self._memory_pool, self._stream, capture_error_mode="thread_local"):
                output = step(static_input)
        return graph.replay, output


class CudaGraphCache:
    """A cache of captured steps: captured at the first call, replayed from then on.

    Parameters
    ----------
    capture : GraphCapture
    """

    def __init__(self, capture: GraphCapture) -> None:
        self._capture = capture
        self._graphs: dict[Hashable, tuple[Tensor, Callable[[], None], Tensor]] = {}

    def __call__(self, key: Hashable, step: StepFunction, inputs: Tensor) -> Tensor:
        """Compute a step.

        Parameters
        ----------
        key : hashable
            Equal keys mean equal steps, whatever the content of `inputs`.
        step : callable
            Captured if the key is new.
        inputs : Tensor
            Copied.

        Returns
        -------
        Tensor
            Overwritten by the next call with this key.
        """
        captured = self._graphs.pop(key, None)
        if captured is None:
            static_input = inputs.clone()
            captured = static_input, *self._capture(step, static_input)
        self._graphs[key] = captured
        if len(self._graphs) > MAX_CUDA_GRAPHS:
            # After capture, which waits for the device, the evicted graph cannot be in the middle of a replay.
            del self._graphs[next(iter(self._graphs))]
        static_input, replay, output = captured
        static_input.copy_(inputs)
        replay()
        return output

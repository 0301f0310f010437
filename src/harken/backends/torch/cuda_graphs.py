"""CUDA graphs: a computation is recorded once and replayed, so that the host launches one thing, not a thousand.

A recording is bound to addresses. Its input is copied into a tensor of its own before each replay, its output lies
where it lay when it was recorded, and what else it reads and writes (weights, `Memory`) never moves while it lives.
Everything that is decided in Python while it is recorded is decided for good; the key says all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

CAPTURED_STEP_TOKENS = (1, 2, 3, 5, 9, 17)
"""How many new tokens a row can bring to a recorded step: one, and behind it a draft of 1, 2, 4, 8 or 16 to verify.

Fewer are padded, so that drafts of any length need no other recordings; with more, nothing is recorded.
"""
MIN_PAST_POSITIONS = 64
MAX_CUDA_GRAPHS = 32
WARMUP_RUNS = 2

StepFunction = Callable[[Tensor], Tensor]


class GraphCapture(Protocol):
    """Makes a recording of a step over a given input."""

    def __call__(self, step: StepFunction, static_input: Tensor) -> tuple[Callable[[], None], Tensor]:
        """Record without computing.

        Returns
        -------
        replay : callable
            Computes the step anew, over what `given` holds by then.
        output : Tensor
            Where each replay leaves the result.
        """
        ...


class CudaGraphCapture:
    """Records CUDA graphs, one stream and one pool of memory for all that it records.

    What shares the pool must not be replayed at the same time; a session does one thing at a time.
    """

    _capture_lock = Lock()  # PyTorch allows one recording a process

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._memory_pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: StepFunction, static_input: Tensor) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with self._capture_lock, torch.cuda.device(static_input.device):
            # Libraries set themselves up at the first call, which cannot be recorded.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARMUP_RUNS):
                    step(static_input)
            torch.cuda.current_stream().wait_stream(self._stream)
            # Other threads may go on working: only what this one does is held to the rules of recording.
            with torch.cuda.graph(graph, self._memory_pool, self._stream, capture_error_mode="thread_local"):
                output = step(static_input)
        return graph.replay, output


class CudaGraphCache:
    """Steps that are recorded when they are first asked for, and replayed from then on.

    Parameters
    ----------
    record : callable
        A `Recorder`.
    """

    def __init__(self, capture: GraphCapture) -> None:
        self._capture = capture
        self._graphs: dict[Hashable, tuple[Tensor, Callable[[], None], Tensor]] = {}

    def __call__(self, key: Hashable, step: StepFunction, inputs: Tensor) -> Tensor:
        """Compute a step.

        Parameters
        ----------
        key : hashable
            Equal keys, equal steps, whatever is in `given`.
        step : callable
            Recorded where the key is new.
        given : Tensor
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
            # Only after recording, which waits for the device: nothing is being replayed that goes away here.
            del self._graphs[next(iter(self._graphs))]
        static_input, replay, output = captured
        static_input.copy_(inputs)
        replay()
        return output

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

STEPS = (1, 2, 3, 5, 9, 17)
"""How many new tokens a row can bring to a recorded step: one, and behind it a draft of 1, 2, 4, 8 or 16 to verify.

Fewer are padded, so that drafts of any length need no other recordings; with more, nothing is recorded.
"""
FIRST_KEYS = 64
MOST_RECORDINGS = 32
WARM_UPS = 2

Step = Callable[[Tensor], Tensor]


class Recorder(Protocol):
    """Makes a recording of a step over a given input."""

    def __call__(self, step: Step, given: Tensor) -> tuple[Callable[[], None], Tensor]:
        """Record without computing.

        Returns
        -------
        replay : callable
            Computes the step anew, over what `given` holds by then.
        output : Tensor
            Where each replay leaves the result.
        """
        ...


class CudaRecorder:
    """Records CUDA graphs, one stream and one pool of memory for all that it records.

    What shares the pool must not be replayed at the same time; a session does one thing at a time.
    """

    _one_at_a_time = Lock()  # PyTorch allows one recording a process

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step, given: Tensor) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with self._one_at_a_time, torch.cuda.device(given.device):
            # Libraries set themselves up at the first call, which cannot be recorded.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    step(given)
            torch.cuda.current_stream().wait_stream(self._stream)
            # Other threads may go on working: only what this one does is held to the rules of recording.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                output = step(given)
        return graph.replay, output


class Replays:
    """Steps that are recorded when they are first asked for, and replayed from then on.

    Parameters
    ----------
    record : callable
        A `Recorder`.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._recorded: dict[Hashable, tuple[Tensor, Callable[[], None], Tensor]] = {}

    def __call__(self, key: Hashable, step: Step, given: Tensor) -> Tensor:
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
        recording = self._recorded.pop(key, None)
        if recording is None:
            own = given.clone()
            recording = own, *self._record(step, own)
        self._recorded[key] = recording
        if len(self._recorded) > MOST_RECORDINGS:
            # Only after recording, which waits for the device: nothing is being replayed that goes away here.
            del self._recorded[next(iter(self._recorded))]
        own, replay, output = recording
        own.copy_(given)
        replay()
        return output

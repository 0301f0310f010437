"""A recorder for the PyTorch backend that stands in for CUDA graphs on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "item"}
"""Operators that bring numbers to the host, which no CUDA graph can record."""


class Tape:
    """`harken.backends.torch.cuda_graphs.Recorder` that does what a CUDA graph does, operator by operator.

    A recording is a list of operators with the tensors that they were given. A replay runs them over these very
    tensors and leaves each result where it lay when it was recorded; nothing of the Python around them runs again.
    """

    made = 0
    """Recordings made by all tapes of this process."""

    def __call__(
        self, step: Callable[[Tensor], Tensor], static_input: Tensor
    ) -> tuple[Callable[[], None], Tensor]:
        with _Recording() as recording:
            output = step(static_input)
        output.fill_(torch.nan)  # a graph computes nothing until it is replayed
        Tape.made += 1
        return recording.replay, output


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in WAITS, f"{func} waits for the device"
        result = func(*args, **(kwargs or {}))
        aliases = [value.alias_info for value in func._schema.returns]
        if any(alias is None or alias.is_write for alias in aliases):  # the others are only views
            self._calls.append((func, args, kwargs or {}, tree_leaves(result)))
        return result

    def replay(self) -> None:
        for func, args, kwargs, results in self._calls:
            for recorded, result in zip(results, tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(recorded, Tensor) and recorded is not result and recorded.numel():
                    recorded.copy_(result)

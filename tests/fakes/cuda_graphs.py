"""A stand-in for CUDA graphs on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SYNCHRONIZING_OPERATORS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "item"}
"""Operators that copy numbers to the host, which no CUDA graph can record."""


class FakeGraphCapture:
    """`harken.backends.torch.static_cache.GraphCapture` that replays operator by operator.

    A recording is a list of operators with the tensors that they were given. A replay runs them over these very
    tensors and writes each result to where it was when recorded; nothing of the Python around them runs again.
    """

    made = 0
    """Recordings made in this process."""

    def __call__(
        self, step: Callable[[Tensor], Tensor], static_input: Tensor
    ) -> tuple[Callable[[], None], Tensor]:
        with _Recording() as recording:
            output = step(static_input)
        # A graph computes nothing until it is replayed.
        output.fill_(torch.nan if output.is_floating_point() else -1)
        FakeGraphCapture.made += 1
        return recording.replay, output


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in SYNCHRONIZING_OPERATORS, f"{func} waits for the device"
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

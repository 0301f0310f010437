"""The GPU engine: the contract in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from harken.backends.torch.arena import Pool
from harken.backends.torch.device import DTYPES, choose, describe
from harken.backends.torch.graphs import CudaRecorder, Recorder
from harken.backends.torch.model import Model
from harken.backends.torch.session import TorchFeatures, TorchSession
from harken.checkpoints.alignment import Heads, default_heads
from harken.contract import Capabilities, Features, Floats
from harken.types import Dims

IDLE_ARENAS = {"cuda": 8, "mps": 2, "cpu": 2}
"""How many arenas are kept for later sessions: where steps are recorded, recording them again takes longest."""


class TorchBackend:
    """`harken.contract.Backend` in PyTorch.

    All work goes to the device's current stream; threads that share a backend share one stream too.

    Parameters
    ----------
    dims : Dims
    weights : mapping of str to ndarray
        By the names of the original state dict, any float dtype; read once.
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``; ``"auto"`` is the first there is of cuda, mps, cpu.
    precision : {"auto", "fp32", "fp16", "bf16"}
        "auto" is fp16, on the CPU fp32.
    alignment_heads : tuple of (layer, head), or None
        Heads of `TorchSession.attention`, in order; None is all of the upper half of the decoder's layers.
    threads : int, optional
        Threads of PyTorch on the CPU, in the whole process; by default PyTorch's own choice.
    recorder : callable, "auto" or None
        Makes a `Recorder` of steps for each arena; None computes every step as it comes. "auto" records CUDA graphs on
        CUDA, and nothing elsewhere.

    Raises
    ------
    OptionError
        If this machine has no such device, or cannot compute in that precision there.
    """

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, NDArray[Any]],
        *,
        device: str = "auto",
        precision: str = "auto",
        alignment_heads: Heads | None = None,
        threads: int | None = None,
        recorder: Callable[[], Recorder] | Literal["auto"] | None = "auto",
    ) -> None:
        place, precision = choose(device, precision)
        if threads is not None:
            torch.set_num_threads(threads)
        if recorder == "auto":
            recorder = partial(CudaRecorder, place) if place.type == "cuda" else None
        self.dims = dims
        self.alignment_heads = tuple(sorted(alignment_heads or default_heads(dims)))
        self._model = Model(dims, weights, self.alignment_heads, place, DTYPES[precision])
        self._pool = Pool(self._model, recorder, IDLE_ARENAS[place.type])
        self.capabilities = Capabilities(
            name="torch",
            precision=precision,
            device=place.type,
            detail=f"torch {torch.__version__} {precision} on {describe(place)}",
        )

    def encode(self, mel: Floats) -> TorchFeatures:
        return TorchFeatures(self._model.encode(torch.tensor(mel)))

    def open(
        self, features: Features, rows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> TorchSession:
        assert isinstance(features, TorchFeatures), "features come from this backend's own encode"
        return TorchSession(self._pool, features, rows, capacity, attention)

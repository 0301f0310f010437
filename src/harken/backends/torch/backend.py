"""The GPU engine: the contract in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from harken.backends.torch.arena import Pool
from harken.backends.torch.attention import attend
from harken.backends.torch.device import DTYPES, choose, describe
from harken.backends.torch.encoder import SPAN_STEP, TorchEncoder
from harken.backends.torch.graphs import CudaRecorder, Recorder
from harken.backends.torch.hashing import Hashing
from harken.backends.torch.logits import Vocabulary
from harken.backends.torch.model import Model
from harken.backends.torch.session import TorchFeatures, TorchSession
from harken.checkpoints.alignment import Heads, default_heads
from harken.contract import Capabilities, Encoder, Features, Floats, Ints
from harken.types import FRAMES_PER_STEP, Dims

NO_ENCODER = "this backend has no encoder of its own: it adopts features"
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
    shares_encoder : bool
        Whether this is to be a decoder alone, as it is anyway where `dims` are: its encoder's weights are not read,
        features are adopted from a backend with the same encoder, and `encode` must not be called.
    vocabulary : ndarray of int64, or None
        Ascending ids of the tokens that logits cover; None is all. Prompts may hold any token.
    alignment_heads : tuple of (layer, head), or None
        Heads of `TorchSession.attention`, in order; None is all of the upper half of the decoder's layers.
    threads : int, optional
        Threads of PyTorch on the CPU, in the whole process; by default PyTorch's own choice.
    recorder : callable, "auto" or None
        Makes a `Recorder` of steps for each arena; None computes every step as it comes. "auto" records CUDA graphs on
        CUDA, and nothing elsewhere.
    hashing : Hashing, optional
        How streams attend to some of what they could look at; by default to all of it. Whole windows always do.

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
        shares_encoder: bool = False,
        vocabulary: Ints | None = None,
        alignment_heads: Heads | None = None,
        threads: int | None = None,
        recorder: Callable[[], Recorder] | Literal["auto"] | None = "auto",
        hashing: Hashing | None = None,
    ) -> None:
        place, precision = choose(device, precision)
        if threads is not None:
            torch.set_num_threads(threads)
        if recorder == "auto":
            recorder = partial(CudaRecorder, place) if place.type == "cuda" else None
        self.dims = dims.without_encoder() if shares_encoder else dims
        self.alignment_heads = tuple(sorted(alignment_heads or default_heads(dims)))
        self._model = Model(
            self.dims,
            weights,
            vocabulary=vocabulary,
            heads=self.alignment_heads,
            device=place,
            dtype=DTYPES[precision],
        )
        self._vocabulary = Vocabulary(np.arange(dims.n_vocab) if vocabulary is None else vocabulary, place)
        self._pool = Pool(self._model, recorder, IDLE_ARENAS[place.type])
        self._hashing = hashing
        self._span_step = SPAN_STEP if recorder is not None else 1
        self.capabilities = Capabilities(
            name="torch",
            precision=precision,
            device=place.type,
            detail=f"torch {torch.__version__} {precision} on {describe(place)}",
        )

    def encode(self, mel: Floats) -> TorchFeatures:
        assert self.dims.has_encoder, NO_ENCODER
        encoded = self._model.encode(torch.tensor(mel))
        return TorchFeatures(encoded, self._model.listen(encoded))

    def adopt(self, features: Features) -> TorchFeatures:
        assert isinstance(features, TorchFeatures), "features come from a backend of the same kind"
        return replace(features, cross=self._model.listen(features.encoded))

    def open(
        self, features: Features, rows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> TorchSession:
        assert isinstance(features, TorchFeatures), "features come from this backend's own encode or adopt"
        return TorchSession(self._pool, self._vocabulary, features, rows, capacity, attention)

    def open_encoder(self, history: int) -> TorchEncoder:
        assert self.dims.has_encoder, NO_ENCODER
        return TorchEncoder(self._model, history // FRAMES_PER_STEP, self._hashing or attend)

    def hear(self, encoders: Sequence[Encoder], mel: Floats, keep: int) -> None:
        TorchEncoder.hear(_own(encoders), mel, keep // FRAMES_PER_STEP)

    def gather(self, encoders: Sequence[Encoder]) -> TorchFeatures:
        return TorchEncoder.gather(_own(encoders), self._span_step)


def _own(encoders: Sequence[Encoder]) -> list[TorchEncoder]:
    own = [encoder for encoder in encoders if isinstance(encoder, TorchEncoder)]
    assert len(own) == len(encoders), "encoders come from this backend's own open_encoder"
    return own

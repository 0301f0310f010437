"""The oracle's side of the contract: no cache at all, every call computes all tokens of a row anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harken.backends.host import HostLogits
from harken.backends.numpy import model
from harken.checkpoints.alignment import Heads, default_heads
from harken.contract import Capabilities, Features, Floats
from harken.types import Dims


@dataclass(frozen=True, slots=True)
class NumpyFeatures:
    """Encoder output, shape (audios, n_audio_ctx, n_audio_state), float32."""

    values: Floats

    @property
    def audios(self) -> int:
        return len(self.values)


class NumpyBackend:
    """`harken.contract.Backend` in plain numpy.

    Parameters
    ----------
    dims : Dims
    weights : mapping of str to ndarray
        By the names of the original state dict, any float dtype.
    alignment_heads : tuple of (layer, head), or None
        Whose cross-attention sessions keep; None stands for all of the upper half of the decoder.
    """

    def __init__(
        self, dims: Dims, weights: Mapping[str, Floats], *, alignment_heads: Heads | None = None
    ) -> None:
        self.dims = dims
        self.alignment_heads = tuple(sorted(alignment_heads or default_heads(dims)))
        self.weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}
        self.capabilities = Capabilities(
            name="numpy", precision="fp32", device="cpu", detail=f"numpy {np.__version__}"
        )

    def encode(self, mel: Floats) -> NumpyFeatures:
        return NumpyFeatures(np.stack([model.encode(m, self.weights, self.dims) for m in mel]))

    def open(
        self, features: Features, rows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> NumpySession:
        assert isinstance(features, NumpyFeatures), "features come from this backend's own encode"
        return NumpySession(self, features, rows, capacity, attention=attention)


class NumpySession:
    """`harken.contract.Session` whose only state is the tokens of each row."""

    def __init__(
        self,
        backend: NumpyBackend,
        features: NumpyFeatures,
        rows: Sequence[int],
        capacity: int,
        *,
        attention: bool,
    ) -> None:
        self._backend, self._features, self._capacity = backend, features, capacity
        self._keeps_attention = attention
        self._rows: list[tuple[int, tuple[int, ...]]] = [(audio, ()) for audio in rows]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(tokens) for _, tokens in self._rows)

    def extend(self, tokens: Sequence[Sequence[int]], tail: int = 1) -> HostLogits:
        self._rows = [
            (audio, (*seen, *map(int, new))) for (audio, seen), new in zip(self._rows, tokens, strict=True)
        ]
        assert max(self.lengths) <= self._capacity, "a row has outgrown the session"
        wanted = [self._decode(row)[0][-min(tail, len(new)) :] for row, new in enumerate(tokens) if len(new)]
        nothing = np.empty((0, self._backend.dims.n_vocab), np.float32)
        return HostLogits(np.concatenate([nothing, *wanted]))

    def rewind(self, lengths: Sequence[int]) -> None:
        self._rows = [(audio, seen[:n]) for (audio, seen), n in zip(self._rows, lengths, strict=True)]

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def attention(self, row: int) -> Floats:
        assert self._keeps_attention, "a session keeps attention if it was opened to"
        layers, heads = zip(*self._backend.alignment_heads, strict=True)
        weights: Floats = self._decode(row)[1][list(layers), list(heads)]
        return weights

    def _decode(self, row: int) -> tuple[Floats, Floats]:
        """Logits and attention at every token of a row."""
        audio, seen = self._rows[row]
        backend = self._backend
        return model.decode(
            np.array(seen, np.int64), self._features.values[audio], backend.weights, backend.dims
        )

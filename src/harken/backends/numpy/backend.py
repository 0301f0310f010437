"""The oracle's side of the contract: no cache at all, every call computes all tokens of a row anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harken.backends.host import HostLogits
from harken.backends.numpy import model
from harken.backends.numpy.encoder import NumpyEncoder
from harken.checkpoints.alignment import Heads, default_heads
from harken.contract import Capabilities, Encoder, Features, Floats, Ints
from harken.types import Dims


@dataclass(frozen=True, slots=True)
class NumpyFeatures:
    """Encoder output of some windows.

    Parameters
    ----------
    values : ndarray of shape (audios, positions, n_audio_state), float32
        Nan behind the end of a window that is shorter than others.
    lengths : sequence of int
        How many positions each window has.
    """

    values: Floats
    lengths: Sequence[int]

    @classmethod
    def of(cls, windows: Sequence[Floats]) -> NumpyFeatures:
        """Put windows of shape (positions, n_audio_state) side by side."""
        lengths = [len(window) for window in windows]
        values = np.full((len(windows), max(lengths), windows[0].shape[1]), np.nan, np.float32)
        for row, window in zip(values, windows, strict=True):
            row[: len(window)] = window
        return cls(values, lengths)

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
    shares_encoder : bool
        Whether this is to be a decoder alone, as it is anyway where `dims` are: its encoder's weights are not read,
        features are adopted from a backend with the same encoder, and `encode` must not be called.
    vocabulary : ndarray of int64, or None
        Ascending ids of the tokens that logits cover; None is all. Prompts may hold any token.
    """

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, Floats],
        *,
        alignment_heads: Heads | None = None,
        shares_encoder: bool = False,
        vocabulary: Ints | None = None,
    ) -> None:
        self.dims = dims.without_encoder() if shares_encoder else dims
        self.alignment_heads = tuple(sorted(alignment_heads or default_heads(dims)))
        self.vocabulary = vocabulary
        names = [name for name in weights if self.dims.has_encoder or not name.startswith("encoder.")]
        self.weights = {name: np.asarray(weights[name], np.float32) for name in names}
        self.capabilities = Capabilities(
            name="numpy", precision="fp32", device="cpu", detail=f"numpy {np.__version__}"
        )

    def encode(self, mel: Floats) -> NumpyFeatures:
        assert self.dims.has_encoder, "this backend has no encoder of its own: it adopts features"
        return NumpyFeatures.of([model.encode(m, self.weights, self.dims) for m in mel])

    def adopt(self, features: Features) -> NumpyFeatures:
        assert isinstance(features, NumpyFeatures), "features come from a backend of the same kind"
        return features

    def open(
        self, features: Features, rows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> NumpySession:
        assert isinstance(features, NumpyFeatures), "features come from this backend's own encode or adopt"
        return NumpySession(self, features, rows, capacity, attention=attention)

    def open_encoder(self, history: int) -> NumpyEncoder:
        assert self.dims.has_encoder, "this backend has no encoder of its own: it adopts features"
        return NumpyEncoder(self.weights, self.dims, history)

    def hear(self, encoders: Sequence[Encoder], mel: Floats, keep: int) -> None:
        for encoder, window in zip(encoders, mel, strict=True):
            assert isinstance(encoder, NumpyEncoder), "encoders are opened by this backend"
            encoder.hear(window, keep)

    def gather(self, encoders: Sequence[Encoder]) -> NumpyFeatures:
        assert all(isinstance(encoder, NumpyEncoder) for encoder in encoders)
        return NumpyFeatures.of([encoder.encode() for encoder in encoders if isinstance(encoder, NumpyEncoder)])


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
        logits = np.concatenate([np.empty((0, self._backend.dims.n_vocab), np.float32), *wanted])
        part = self._backend.vocabulary
        return HostLogits(logits if part is None else logits.take(part, axis=1), part)

    def rewind(self, lengths: Sequence[int]) -> None:
        self._rows = [(audio, seen[:n]) for (audio, seen), n in zip(self._rows, lengths, strict=True)]

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def attention(self, row: int) -> Floats:
        assert self._keeps_attention, "a session keeps attention if it was opened to"
        layers, heads = zip(*self._backend.alignment_heads, strict=True)
        weights: Floats = self._decode(row)[1][list(layers), list(heads)]
        silent = self._features.values.shape[1] - weights.shape[-1]
        return np.pad(weights, ((0, 0), (0, 0), (0, silent)))

    def _decode(self, row: int) -> tuple[Floats, Floats]:
        """Logits and attention at every token of a row."""
        audio, seen = self._rows[row]
        backend, heard = self._backend, self._features
        window = heard.values[audio, : heard.lengths[audio]]
        return model.decode(np.array(seen, np.int64), window, backend.weights, backend.dims)

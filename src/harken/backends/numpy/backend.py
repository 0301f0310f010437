"""The reference backend: no KV cache, every call computes all tokens of a row, or all chunks of a stream, anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from harken.backends.encoding import NO_ENCODER, FrozenPadding, own_features, own_states
from harken.backends.host_logits import HostLogits
from harken.backends.numpy import model
from harken.backends.numpy.model import Mask
from harken.checkpoints.alignment_heads import KeptHeads
from harken.contract import Arrays, Capabilities, Features, Floats, Ints, StreamingEncoderState
from harken.types import Dims


@dataclass(frozen=True, slots=True)
class NumpyFeatures:
    """Encoder output of some windows.

    Parameters
    ----------
    windows : sequence of ndarray of shape (positions, n_audio_state), float32
    padding : FrozenPadding or None
        What stands for the padding of all windows.
    """

    windows: Sequence[Floats]
    padding: FrozenPadding | None = None

    @property
    def n_windows(self) -> int:
        return len(self.windows)


class NumpyBackend:
    """`harken.contract.Backend` in plain numpy.

    Parameters
    ----------
    dims : Dims
        Without an encoder, features come from `reuse_encoder_output`, and `encode` must not be called.
    weights : mapping of str to ndarray
        By the names of the original state dict, any float dtype.
    heads : KeptHeads, optional
        Heads of `Session.attention`; by default all of the upper half of the decoder's layers.
    vocab_subset : ndarray of int64, or None
        Ascending ids of the tokens that logits cover; None is all. Prompts may hold any token.
    """

    clock = staticmethod(perf_counter)

    def __init__(
        self,
        dims: Dims,
        weights: Arrays,
        *,
        heads: KeptHeads | None = None,
        vocab_subset: Ints | None = None,
    ) -> None:
        self.dims, self.heads = dims, heads or KeptHeads.of(dims)
        self.word_heads = self.heads.words
        self.vocab_subset = vocab_subset
        names = [name for name in weights if self.dims.has_encoder or not name.startswith("encoder.")]
        self.weights = {name: np.asarray(weights[name], np.float32) for name in names}
        self.capabilities = Capabilities(
            name="numpy",
            precision="fp32",
            device="cpu",
            detail=f"numpy {np.__version__}",
            frozen_padding=True,
        )

    def encode(self, mel: Floats, *, padded: bool = False) -> NumpyFeatures:
        assert self.dims.has_encoder, NO_ENCODER
        if not padded:
            return NumpyFeatures([model.encode(window, self.weights, self.dims) for window in mel])
        windows, paddings = zip(
            *(model.encode_padded(window, self.weights, self.dims) for window in mel), strict=True
        )
        return NumpyFeatures(windows, paddings[0])

    def encoder_output(self, features: Features) -> Floats:
        """Return it with NaN behind the end of a window that is shorter than others."""
        windows = own_features(features, NumpyFeatures).windows
        padded = np.full((len(windows), max(map(len, windows)), windows[0].shape[1]), np.nan, np.float32)
        for row, window in zip(padded, windows, strict=True):
            row[: len(window)] = window
        return padded

    def reuse_encoder_output(self, features: Features) -> NumpyFeatures:
        return own_features(features, NumpyFeatures)

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> NumpySession:
        own = own_features(features, NumpyFeatures)
        return NumpySession(self, own, row_windows, capacity, attention=attention)

    def open_encoder(self, history_frames: int) -> NumpyEncoderState:
        assert self.dims.has_encoder, NO_ENCODER
        return NumpyEncoderState(self.weights, self.dims, history_frames)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        for state, chunk in zip(own_states(states, NumpyEncoderState), mel, strict=True):
            state.append_chunk(chunk, final_frames)

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> NumpyFeatures:
        return NumpyFeatures([state.encode() for state in own_states(states, NumpyEncoderState)])


class NumpySession:
    """`harken.contract.Session` whose only state is the tokens of each row."""

    def __init__(
        self,
        backend: NumpyBackend,
        features: NumpyFeatures,
        row_windows: Sequence[int],
        capacity: int,
        *,
        attention: bool,
    ) -> None:
        self._backend, self._features, self._capacity = backend, features, capacity
        self._captures_attention = attention
        self._rows: list[tuple[int, tuple[int, ...]]] = [(window, ()) for window in row_windows]

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        self._rows = [
            (window, (*seen, *map(int, new))) for (window, seen), new in zip(self._rows, tokens, strict=True)
        ]
        assert max(len(seen) for _, seen in self._rows) <= self._capacity, "a row has outgrown the session"
        last_logits = [
            self._decode(row)[0][-min(last_n, len(new)) :] for row, new in enumerate(tokens) if len(new)
        ]
        logits = np.concatenate([np.empty((0, self._backend.dims.n_vocab), np.float32), *last_logits])
        vocab_subset = self._backend.vocab_subset
        return HostLogits(logits if vocab_subset is None else logits.take(vocab_subset, axis=1), vocab_subset)

    def rewind(self, lengths: Sequence[int]) -> None:
        self._rows = [(window, seen[:n]) for (window, seen), n in zip(self._rows, lengths, strict=True)]

    def reorder(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def attention(self, row: int, *, words: bool = False) -> Floats:
        assert self._captures_attention, "attention is kept in sessions that were opened with attention=True"
        layers, heads = zip(*self._backend.heads.all, strict=True)
        weights: Floats = self._decode(row)[1][list(layers), list(heads)]
        missing = max(map(len, self._features.windows)) - weights.shape[-1]
        return self._backend.heads.select(np.pad(weights, ((0, 0), (0, 0), (0, missing))), words=words)

    def _decode(self, row: int) -> tuple[Floats, Floats]:
        """Compute logits and attention at every token of a row."""
        window, seen = self._rows[row]
        backend, features = self._backend, self._features
        key_bias = features.padding.key_bias if features.padding else None
        tokens, encoder_output = np.array(seen, np.int64), features.windows[window]
        return model.decode(tokens, encoder_output, backend.weights, backend.dims, key_bias)


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The frames that one call encodes.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, 2 W or 2 W + 1), float32
    first_position : int
        Position of the first two frames in the stream.
    final_positions : int
        Number of positions that are final, from the first on.
    """

    mel: Floats
    first_position: int
    final_positions: int

    @property
    def positions(self) -> int:
        return int(self.mel.shape[1]) // 2


class NumpyEncoderState:
    """`harken.contract.StreamingEncoderState` whose only state is the log-mel of all chunks that it was given.

    It encodes them in one pass of the offline encoder under an attention mask. The chunks are concatenated, so that
    frames of look-ahead occur once for each time that they were encoded. Each position attends to its own chunk and to
    the final positions of earlier chunks within the history (the rearranged sequence of Shi et al. 2021, "Emformer",
    section 3.1).
    """

    def __init__(self, weights: Arrays, dims: Dims, history_frames: int) -> None:
        assert history_frames % 2 == 0, "a history is an even number of frames"
        self._weights, self._dims, self._history_positions = weights, dims, history_frames // 2
        self._chunks: list[EncodedChunk] = []

    @property
    def final_positions(self) -> int:
        return sum(chunk.final_positions for chunk in self._chunks)

    def append_chunk(self, mel: Floats, final_frames: int) -> None:
        """Append a chunk of shape (n_mels, frames), of which the first `final_frames` are final."""
        chunk = EncodedChunk(mel.copy(), self.final_positions, final_frames // 2)
        assert final_frames in range(0, mel.shape[1] + 1, 2), "final frames: even, at most those of the chunk"
        assert chunk.first_position + chunk.positions <= self._dims.n_audio_ctx, "the stream is too long"
        self._chunks.append(chunk)

    def encode(self) -> Floats:
        """Encode all positions, those of the look-ahead last, shape (positions, n_audio_state)."""
        chunks = self._chunks
        x = model.encoder_blocks(
            embed_chunks(chunks, self._weights),
            self._weights,
            self._dims,
            attention_mask(chunks, self._history_positions),
        )
        in_last_chunk = np.arange(len(x)) >= len(x) - chunks[-1].positions
        y: Floats = x[final_position_mask(chunks) | in_last_chunk]
        return y


def embed_chunks(chunks: Sequence[EncodedChunk], weights: Arrays) -> Floats:
    """Convolve each chunk behind the final frames before it, and concatenate the results."""
    embeddings, final_mel = [], chunks[0].mel[:, :0]
    for chunk in chunks:
        mel_with_context = np.concatenate([final_mel, chunk.mel], axis=1)
        embeddings.append(model.stem(mel_with_context, weights)[chunk.first_position :])
        final_mel = mel_with_context[:, : 2 * (chunk.first_position + chunk.final_positions)]
    return np.concatenate(embeddings)


def attention_mask(chunks: Sequence[EncodedChunk], history_positions: int) -> Mask:
    """Compute which positions each position attends to, over the positions of all chunks concatenated."""
    chunk_index = np.repeat(np.arange(len(chunks)), [chunk.positions for chunk in chunks])
    position = np.concatenate([chunk.first_position + np.arange(chunk.positions) for chunk in chunks])
    chunk_start = np.array([chunk.first_position for chunk in chunks])[chunk_index]
    in_history = (
        final_position_mask(chunks)
        & (chunk_index < chunk_index[:, None])
        & (position >= chunk_start[:, None] - history_positions)
    )
    return np.asarray(in_history | (chunk_index == chunk_index[:, None]), np.bool_)


def final_position_mask(chunks: Sequence[EncodedChunk]) -> Mask:
    """Compute which positions of all chunks concatenated are final, shape (positions,)."""
    return np.concatenate([np.arange(chunk.positions) < chunk.final_positions for chunk in chunks])

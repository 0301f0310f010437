"""What backends share before the decoder: their checks of callers, and encoding by the CPU engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from harken import audio
from harken.audio.mel import log_mel, normalize, pad_or_trim
from harken.contract import Features, Floats, SparsePositions, StreamingEncoderState
from harken.types import FRAMES_PER_POSITION, Dims

SHORT_SPEECH = Path(audio.__file__).parent / "data" / "short_speech.npz"
NO_ENCODER = "this backend has no encoder: use reuse_encoder_output"

OwnState = TypeVar("OwnState")


def own_states(states: Sequence[StreamingEncoderState], state_type: type[OwnState]) -> list[OwnState]:
    """Return the states; none may have been opened by a backend of another kind."""
    own: list[OwnState] = []
    for state in states:
        assert isinstance(state, state_type), "encoder states come from this backend's own open_encoder"
        own.append(state)
    return own


@cache
def short_speech_window(dims: Dims) -> Floats:
    """Return the log-mel of a window with 0.9 s of speech, shape (n_mels, window_frames), whose padding is frozen.

    With longer speech positions that are frozen would be speech, and a window of silence is no good: its padding
    differs from that after speech (docs/experiments/fidelity.md).
    """
    with np.load(SHORT_SPEECH) as archive:
        samples = archive["samples"].astype(np.float32) / 32768
    mel = log_mel(samples, dims.n_mels)
    return pad_or_trim(normalize(mel, float(mel.max())), FRAMES_PER_POSITION * dims.n_audio_ctx)


class EncodedWindows:
    """The encoder's output for some windows, which any decoder of a CPU engine can reuse.

    Parameters
    ----------
    encoder_output : ndarray of shape (windows, positions, n_audio_state), float32
    lengths : sequence of int, or None
        Number of positions of each window, where they differ; after them the array holds any finite values.
    sparse_positions : SparsePositions, optional
        Those of all windows.
    """

    def __init__(
        self,
        encoder_output: Floats,
        lengths: Sequence[int] | None = None,
        sparse_positions: SparsePositions | None = None,
    ) -> None:
        self.encoder_output, self.lengths = encoder_output, lengths
        self.sparse_positions = sparse_positions

    @property
    def n_windows(self) -> int:
        return len(self.encoder_output)

    @property
    def positions(self) -> int:
        return int(self.encoder_output.shape[1])


class Encoder(Protocol):
    """An encoder of windows and of streams."""

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> Floats:
        """Return the encoder's output for windows, shape (windows, positions, n_audio_state)."""
        ...

    def open_encoder(self, history_frames: int) -> StreamingEncoderState:
        """Open the encoder of a stream."""
        ...

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        """Encode the next chunks of some streams (see `harken.contract.Backend.encode_chunk`)."""
        ...


F = TypeVar("F", bound=EncodedWindows)


class EncodingBackend(ABC, Generic[F]):
    """The methods of `harken.contract.Backend` before the decoder, for a decoder with features of type F."""

    _encoder: Encoder | None
    """None if the backend has a decoder only."""

    @abstractmethod
    def _project(
        self,
        encoder_output: Floats,
        lengths: Sequence[int] | None = None,
        positions: SparsePositions | None = None,
    ) -> F:
        """Make features: project the encoder's output to the keys and values of the cross-attention."""

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> F:
        assert self._encoder is not None, NO_ENCODER
        return self._project(self._encoder.encode(mel, positions), positions=positions)

    def encoder_output(self, features: Features) -> Floats:
        assert isinstance(features, EncodedWindows), "features come from a backend of the same kind"
        return features.encoder_output

    def reuse_encoder_output(self, features: Features) -> F:
        assert isinstance(features, EncodedWindows), "features come from a backend of the same kind"
        return self._project(features.encoder_output, features.lengths, features.sparse_positions)

    def open_encoder(self, history_frames: int) -> StreamingEncoderState:
        assert self._encoder is not None, NO_ENCODER
        return self._encoder.open_encoder(history_frames)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        assert self._encoder is not None, NO_ENCODER
        self._encoder.encode_chunk(states, mel, final_frames)

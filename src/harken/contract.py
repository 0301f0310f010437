"""The contract in the middle: what decides tokens stands above it, what computes numbers below it.

A `Backend` encodes windows of log-mel and opens a `Session`, which owns all mutable state of decoding: for
every row, the tokens it has seen. Three verbs change it, and they are enough:

======================  ==========================================================
prefill, step, verify   ``extend`` with the prompt, 1 token, or a draft's k + 1
beam search             ``select(parents)`` then ``extend``
best of n               ``select([0] * n)`` after one prefill
speculative decoding    ``extend(pending + draft)``, accept while equal, ``rewind``
a finished row          an empty sequence in ``extend``, or dropped by ``select``
======================  ==========================================================

Rows are ragged: one sequence of tokens a row, of any length. Positions are counted from the row's own start.

A stream is heard window by window: an `Encoder` keeps what its next window will look back at, ``hear`` encodes the next
windows of some streams together, ``gather`` makes features of all that they have heard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harken.types import Dims

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
TokenRange = tuple[int, int]
"""Half-open range of token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend is and runs on, for people and for the choice of defaults."""

    name: str
    precision: str
    device: str
    detail: str


class Features(Protocol):
    """Encoder output of some windows, kept where the backend computes."""

    @property
    def n_windows(self) -> int:
        """Number of windows."""
        ...


class StreamingEncoderState(Protocol):
    """What the encoder remembers of one stream; owned by the backend that opened it.

    A position is what the encoder gives for 2 mel frames. Positions are *kept* once they are final; behind them there
    may be some of look-ahead, which the next window hears again.
    """

    @property
    def final_positions(self) -> int:
        """Number of positions that are final."""
        ...

    @property
    def positions(self) -> int:
        """Number of positions, those of the look-ahead included."""
        ...


class Logits(Protocol):
    """Logits at P positions, one after another by row; a handle that stays on its device.

    Bans come first, then `prefer_timestamps`, then a log-softmax over what is left.
    """

    def __len__(self) -> int:
        """Return P, the number of positions."""
        ...

    def select_positions(self, positions: Sequence[int]) -> Logits:
        """Copy some positions out, in the given order; one may be taken several times."""
        ...

    def probability(self, token: int) -> Floats:
        """Softmax probability of one token under the logits as they stand, shape (P,)."""
        ...

    def suppress_ranges(self, token_ranges: Sequence[Sequence[TokenRange]]) -> None:
        """Set the logits of the given id ranges to -inf, one list of ranges a position."""
        ...

    def suppress_tokens(self, tokens: Ints) -> None:
        """Set the logits of the given ids to -inf at every position."""
        ...

    def bias(self, bonuses: Sequence[Mapping[int, float]]) -> None:
        """Add to the logits of some ids, one mapping of ids to bonuses a position."""
        ...

    def prefer_timestamps(self, timestamp_begin: int) -> None:
        """Ban ids below `begin` wherever all ids from `begin` on outweigh each single one of them.

        Source: openai/whisper, decoding.py, ApplyTimestampRules ("if sum of probability over timestamps
        is above any other token, sample timestamp").
        """
        ...

    def top(self, k: int) -> tuple[Ints, Floats]:
        """The k best ids and their log-probabilities, best first, shapes (P, k)."""
        ...

    def sample(self, temperature: float, uniforms: Sequence[float]) -> tuple[Ints, Floats]:
        """Draw one id a position at `temperature`, by inverting the distribution at a number in [0, 1).

        Returns
        -------
        ids : ndarray of shape (P,), int64
        logprobs : ndarray of shape (P,), float32
            Log-probabilities at temperature 1, as the reference sums them.
        """
        ...


class Session(Protocol):
    """Decoding state of some rows over some windows."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens that each row has seen."""
        ...

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Logits:
        """Append tokens to every row and return the logits of the last `tail` of them.

        Parameters
        ----------
        tokens : one sequence a row, an empty one leaves the row as it is
        tail : int
            How many of each row's new positions get logits; a row that brings fewer gets as many as it brings.

        Returns
        -------
        Logits
            Positions of the first row, then those of the second, and so on.
        """
        ...

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget tokens from the end: row r keeps its first ``lengths[r]``."""
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Replace the rows by the given ones: reorder, fan out or drop."""
        ...

    def attention(self, row: int) -> Floats:
        """Cross-attention of the alignment heads for every token that a row has seen.

        Only in a session that was opened to keep it.

        Returns
        -------
        ndarray of shape (heads, tokens, positions), float32
            Softmax weights over the positions of the row's window, half as many as it has mel frames.
        """
        ...


class Backend(Protocol):
    """One model, ready to compute."""

    @property
    def dims(self) -> Dims:
        """Dimensions of the model."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it runs on, and in which precision."""
        ...

    def encode(self, mel: Floats) -> Features:
        """Encode windows of shape (audios, n_mels, frames), float32, normalised log10 mel.

        `frames` is even and at most ``2 * n_audio_ctx``; what a window holds less, nobody attends to.
        """
        ...

    def reuse_encoder_output(self, features: Features) -> Features:
        """Features for this backend's decoder, from those of another whose encoder has the same weights.

        Both are of the same kind, on the same device. Only the keys and values of the cross-attention are computed,
        so a decoder without an encoder of its own needs no more than this.
        """
        ...

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> Session:
        """Open a session with one row for each entry of `rows`, which names the window it listens to.

        Parameters
        ----------
        features : Features
            From `encode` of the same backend.
        rows : sequence of int
            Window index of each row.
        capacity : int
            Most tokens a row will hold, at most ``dims.n_text_ctx``.
        attention : bool
            Whether to keep the cross-attention of the alignment heads (see `Session.attention`).
        """
        ...

    def open_encoder(self, history_frames: int) -> StreamingEncoderState:
        """Open the encoder of a stream, which looks back at the last `history` mel frames that were kept.

        Parameters
        ----------
        history : int
            Even; 0 looks back at nothing.
        """
        ...

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        """Encode the next windows of some streams together, each as if it were alone.

        All positions of a window attend to one another and to the stream's history, in every layer. The first of them
        are kept, and their keys and values become history; those behind are look-ahead and will be encoded again with
        the next window (the right context of Shi et al. 2021, "Emformer", section 3.1). The convolutions go on over
        the edge of the window exactly, so the cost is that of (W + history) keys for each of W positions, wherever in
        the stream that is.

        Parameters
        ----------
        encoders : sequence of Encoder
            Opened by this backend with the same history, none of them twice.
        mel : ndarray of shape (encoders, n_mels, frames), float32
            Normalised log10 mel: the frames that follow those kept so far. Their number is odd, 2 W + 1: the last one
            is only seen by the convolutions. Or it is even, 2 W, where nothing follows: zeros stand behind it.
        keep : int
            How many of the frames are final, even and at most 2 W.

        Notes
        -----
        A stream has no more than ``dims.n_audio_ctx`` positions, those of the look-ahead included.
        """
        ...

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> Features:
        """Features with one window a stream: all positions that it has, those of the look-ahead last.

        Windows may differ in length; nobody attends to what a shorter one lacks, and `Session.attention` is 0 there.
        """
        ...

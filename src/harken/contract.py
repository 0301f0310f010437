"""The contract between decoding, which chooses tokens, and the backends, which compute numbers.

A `Backend` encodes windows of log-mel and opens a `Session`, which owns all mutable state of decoding: the tokens
that each row has read. Three methods change it:

======================  ==========================================================
prefill, step, verify   ``extend`` with the prompt, 1 token, or a draft's k + 1
beam search             ``reorder(parents)`` then ``extend``
best of n               ``reorder([0] * n)`` after one prefill
speculative decoding    ``extend(pending + draft)``, accept while equal, ``rewind``
a finished row          an empty sequence in ``extend``, or dropped by ``reorder``
======================  ==========================================================

Rows are ragged: one sequence of tokens a row, of any length. Positions are counted from the row's own start.

A stream is encoded chunk by chunk: a `StreamingEncoderState` keeps what its next chunk attends to, ``encode_chunk``
encodes the next chunks of some streams together, and ``stream_features`` makes features of all that was encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harken.types import Dims, WordHead

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]
"""Arrays by their names: weights by those of the original state dict, inputs and outputs of a graph by theirs."""
TokenRange = tuple[int, int]
"""Half-open range of token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Description of a backend and of what it runs on, for people and for the choice of defaults."""

    name: str
    precision: str
    device: str
    detail: str
    frozen_padding: bool = False
    """True if `Backend.encode` can leave the padding of windows out."""
    picks_best: bool = False
    """True if sessions are of the kind `GreedySession`."""
    joins_features: bool = False
    """True if the backend is of the kind `JoiningBackend`."""


class Features(Protocol):
    """The encoder's output for some windows, on the device of the backend."""

    @property
    def n_windows(self) -> int:
        """Number of windows."""
        ...


class StreamingEncoderState(Protocol):
    """State of the encoder of one stream; owned by the backend that opened it.

    A position is the encoder's output for 2 mel frames. Final positions do not change any more; behind them there may
    be positions of look-ahead, which the next chunk encodes again.
    """

    @property
    def final_positions(self) -> int:
        """Number of positions that are final."""
        ...


class Logits(Protocol):
    """Logits at P positions, row after row; they stay on the device of their backend.

    Suppress first, then call `prefer_timestamps`; log-probabilities are a log-softmax over the tokens that are left.
    """

    def __len__(self) -> int:
        """Return P, the number of positions."""
        ...

    def select_positions(self, positions: Sequence[int]) -> Logits:
        """Return a copy of some positions, in the given order; a position may be repeated."""
        ...

    def probability(self, token: int) -> Floats:
        """Return the softmax probability of one token under the current logits, shape (P,)."""
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
        """Suppress ids below `timestamp_begin` where all others together are likelier than each of them.

        Source: openai/whisper, decoding.py, ApplyTimestampRules ("if sum of probability over timestamps
        is above any other token, sample timestamp").
        """
        ...

    def top(self, k: int) -> tuple[Ints, Floats]:
        """Return the k best ids and their log-probabilities, best first, shapes (P, k)."""
        ...

    def sample(self, temperature: float, uniforms: Sequence[float]) -> tuple[Ints, Floats]:
        """Draw one id a position at `temperature`: invert the cumulative distribution at a number in [0, 1).

        Returns
        -------
        ids : ndarray of shape (P,), int64
        logprobs : ndarray of shape (P,), float32
            Log-probabilities at temperature 1, as the reference sums them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyRules:
    """Tokens that may not be picked after the first, as data (`harken.decoding.logit_rules.LogitRules` says why)."""

    eot: int  # end of text
    suppressed: Ints  # never picked
    timestamp_begin: int | None
    """First timestamp; all ids from it on are timestamps, and their grammar holds. None if none are decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedSoFar:
    """A row that is decoded greedily."""

    tokens: Sequence[int]  # picked, at least one
    left: int  # most tokens to pick, at least 1
    speech_end: int | None = None  # timestamp before which no segment may stay empty
    unread: Sequence[int] = ()
    """Tokens that the session has still to read, the last of `tokens` behind all others; empty is that one alone."""
    calibration: float = 1.0  # factor on the probability of a token, for `least_prob`
    least_prob: float = 0.0  # probability that all tokens picked in a call are right, below which the call ends


class Session(Protocol):
    """Decoding state of some rows over some windows."""

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Logits:
        """Append tokens to every row and return the logits at the last `last_n` of them.

        Parameters
        ----------
        tokens : sequence of sequences of int
            One sequence a row; an empty one leaves the row as it is.
        last_n : int
            Number of new positions of each row that get logits; a row with fewer new tokens gets one for each.

        Returns
        -------
        Logits
            Positions of the first row, then those of the second, and so on.
        """
        ...

    def rewind(self, lengths: Sequence[int]) -> None:
        """Drop tokens from the end of every row: row r keeps its first ``lengths[r]``."""
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Replace the rows by the given ones, which permutes, copies or drops rows."""
        ...

    def attention(self, row: int, *, words: bool = False) -> Floats:
        """Return the cross-attention of the alignment heads for every token that a row has read.

        The session must have been opened with ``attention=True``.

        Parameters
        ----------
        row : int
        words : bool
            And behind it that of `Backend.word_heads`.

        Returns
        -------
        ndarray of shape (heads, tokens, positions), float32
            Softmax weights over the positions of the row's window, half as many as it has mel frames.
        """
        ...


class GreedySession(Session, Protocol):
    """A session that picks some tokens in one call, where ``capabilities.picks_best`` is true."""

    def pick_best(self, rules: GreedyRules, picked: Sequence[PickedSoFar], most: int) -> tuple[Ints, Floats]:
        """Read the unread tokens of every row and pick the most probable next one, some times in one call.

        The same as `Session.extend`, the rules, and `Logits.top`.

        Parameters
        ----------
        rules : GreedyRules
        picked : sequence of PickedSoFar
            One a row.
        most : int
            Most steps. A row ends with the step in which it picks the end of text, or its last token, or becomes too
            improbable. The call ends when the first row has ended, or later: what it picks for a row behind its end
            means nothing. It ends when all have.

        Returns
        -------
        ids : ndarray of shape (steps, rows), int64
        logprobs : ndarray of shape (steps, rows), float32
        """
        ...


class Backend(Protocol):
    """A model that is ready to compute."""

    @property
    def dims(self) -> Dims:
        """Dimensions of the model."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Description of the device and the precision."""
        ...

    @property
    def word_heads(self) -> tuple[WordHead, ...]:
        """Heads that attend to the bounds of words; none where they are not known."""
        ...

    @property
    def clock(self) -> Callable[[], float]:
        """`time.perf_counter`, less the seconds of work that is done once for all windows, such as capturing steps."""
        ...

    def encode(self, mel: Floats, *, padded: bool = False) -> Features:
        """Encode windows of log-mel.

        Not to be called where ``dims.has_encoder`` is false.

        Parameters
        ----------
        mel : ndarray of shape (windows, n_mels, frames), float32
            Normalised log10 mel. The number of frames is even and at most ``2 * n_audio_ctx``; a shorter window has
            fewer positions.
        padded : bool
            True if padding follows up to ``2 * n_audio_ctx`` frames: it is not encoded, and frozen positions stand for
            it (`harken.backends.encoding.FrozenPadding`). Only where ``capabilities.frozen_padding`` is true.
        """
        ...

    def encoder_output(self, features: Features) -> Floats:
        """Return the encoder's output in host memory, shape (windows, positions, n_audio_state), float32.

        Values behind the end of a window that is shorter than others are undefined.
        """
        ...

    def reuse_encoder_output(self, features: Features) -> Features:
        """Make features for this backend's decoder from those of a backend whose encoder has the same weights.

        Both backends are of the same kind and on the same device. Only the keys and values of the cross-attention are
        computed: a decoder without an encoder needs nothing else.
        """
        ...

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> Session:
        """Open a session with one row for each entry of `row_windows`.

        Parameters
        ----------
        features : Features
            From `encode`, `reuse_encoder_output` or `stream_features` of the same backend.
        row_windows : sequence of int
            Index of the window that each row attends to.
        capacity : int
            Most tokens that a row will hold, at most ``dims.n_text_ctx``.
        attention : bool
            Keep the cross-attention of the alignment heads (see `Session.attention`).
        """
        ...

    def open_encoder(self, history_frames: int) -> StreamingEncoderState:
        """Open the encoder of a stream.

        Parameters
        ----------
        history_frames : int
            Number of final mel frames before a chunk that the chunk attends to, even; 0 is no history.
        """
        ...

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        """Encode the next chunks of some streams together; each gets the result that it would get alone.

        All positions of a chunk attend to one another and to the stream's history, in every layer. The first of them
        are final, and their keys and values become history; the others are look-ahead and will be encoded again with
        the next chunk (the right context of Shi et al. 2021, "Emformer", section 3.1). The convolutions continue
        exactly across the edges of chunks. The cost is that of (W + history) keys for each of W positions, wherever
        in the stream the chunk lies.

        Parameters
        ----------
        states : sequence of StreamingEncoderState
            Opened by this backend with the same history, none of them twice.
        mel : ndarray of shape (streams, n_mels, frames), float32
            Normalised log10 mel: the frames that follow the final ones so far. Their number is odd, 2 W + 1, where the
            last frame is read by the convolutions only; or it is even, 2 W, at the end of a stream, which is padded
            with zeros.
        final_frames : int
            Number of frames that become final, even and at most 2 W.

        Notes
        -----
        A stream has no more than ``dims.n_audio_ctx`` positions, including those of the look-ahead.
        """
        ...

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> Features:
        """Make features with one window a stream: all positions of the stream, those of the look-ahead last.

        Windows may differ in length: the positions that a shorter one lacks are masked, and `Session.attention` is 0
        there. The features may be used until a further chunk of one of the streams is encoded.
        """
        ...


class JoiningBackend(Backend, Protocol):
    """A backend that decodes windows together that were encoded apart."""

    def join_features(self, features: Sequence[Features]) -> Features:
        """Return features of all these windows, in order, for sessions alone; their positions may differ."""
        ...

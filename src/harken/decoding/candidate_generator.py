"""Candidate generators: cheap sources of draft tokens, which the model verifies in one forward pass.

Tokens are looked up in earlier text (`PromptLookup`) or decoded by a smaller model (`AssistedCandidateGenerator`). They
change the speed of decoding, never the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from harken.contract import (
    Backend,
    Features,
    Floats,
    GreedyRules,
    GreedySession,
    PickedSoFar,
    Session,
    SparsePositions,
)
from harken.decoding.logit_rules import LogitRules


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """A request to draft tokens for one row.

    Parameters
    ----------
    row : int
        Number of the row, the same for as long as the generator lives.
    prefix : sequence of int
        Tokens picked in it so far, behind the prompt.
    max_tokens : int
        Most tokens to draft; 0 for a row that only remains part of the decode.
    calibration : float
        Measured ratio of accepted tokens to those that the generator expected to be accepted in this row.
    draft_threshold : float
        Probability that all tokens so far are accepted, below which one more token is not worth a step of the
        generator.
    verify_threshold : float
        Probability that a drafted token and all before it are accepted, below which it is not worth verifying.
    """

    row: int
    prefix: Sequence[int]
    max_tokens: int
    calibration: float = 1.0
    draft_threshold: float = 0.0
    verify_threshold: float = 0.0

    def acceptance_prob(self, confidence: float) -> float:
        """Return the probability that a token with this confidence is accepted."""
        return min(confidence * self.calibration, 0.99)


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """Draft tokens of one row, maybe none.

    Parameters
    ----------
    tokens : tuple of int
    confidences : tuple of float
        Probability, as estimated by the generator, that each is right if those before it are.
    """

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()


class CandidateGenerator(Protocol):
    """A source of draft tokens for the rows of one decode."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        """Return draft tokens for each request.

        Rows that earlier calls requested and this one does not have ended.
        """
        ...

    @property
    def forwards(self) -> int:
        """Number of forward passes that drafting has taken so far."""
        ...


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


MAX_NGRAM_SIZE = 4


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """A candidate generator that finds the last tokens in earlier text and continues as that does.

    Parameters
    ----------
    source_tokens : list of sequence of int
        Text to search, one a row.
    same_audio : bool
        Whether the text of a row is an earlier hypothesis of the same audio. Then a row without tokens drafts its
        beginning, and of several matches the one at the nearest distance from the beginning counts. Otherwise the
        tokens so far are searched too, and the last match counts.
    min_ngram_size : int
        Least number of tokens that have to match.
    confidence : float
        Probability that each token is right.
    allows : callable
        Whether a token may follow a prefix (`LogitRules.allows`); one that may not ends the draft before it.
    timestamp_begin : int or None
        Ids from here on are timestamps. A source without any, such as a hypothesis of a stream, is matched by the text
        alone.
    forwards : int
        Always 0.
    """

    source_tokens: Sequence[Sequence[int]]
    same_audio: bool = False
    min_ngram_size: int = 3
    confidence: float = 0.5
    allows: Callable[[Sequence[int], int], bool] = lambda prefix, token: True
    timestamp_begin: int | None = None
    forwards: int = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        """Return draft tokens for each request."""
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> DraftTokens:
        joint_prob, tokens = 1.0, list[int]()
        continuation = self._continuation(request.row, request.prefix)
        for token in continuation[: request.max_tokens]:
            joint_prob *= request.acceptance_prob(self.confidence)
            if joint_prob <= request.verify_threshold or not self.allows((*request.prefix, *tokens), token):
                break
            tokens.append(token)
        return DraftTokens(tuple(tokens), (self.confidence,) * len(tokens))

    def _continuation(self, row: int, prefix: Sequence[int]) -> Sequence[int]:
        """Return the source tokens that follow the match, none without a match."""
        source = self.source_tokens[row] if self.same_audio else (*self.source_tokens[row], *prefix)
        text_tokens = [token for token in prefix if not self._is_timestamp(token)]
        has_timestamps = any(map(self._is_timestamp, source))
        if self.same_audio and self.timestamp_begin is not None and not (prefix or has_timestamps):
            return (self.timestamp_begin, *source)  # most windows begin with speech
        match_timestamps = len(text_tokens) == len(prefix) or has_timestamps
        start = self._match_end(_as_string(source), _as_string(prefix if match_timestamps else text_tokens))
        if start is None:
            return ()
        # Most segments begin at the time at which the one before them ended.
        segment_ended = (
            not match_timestamps
            and start < len(source)
            and [self._is_timestamp(token_id) for token_id in prefix[-2:]] == [False, True]
        )
        return (*prefix[-1:], *source[start:]) if segment_ended else source[start:]

    def _is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin is not None and token >= self.timestamp_begin

    def _match_end(self, source: str, prefix: str) -> int | None:
        """Return the index in the source behind its match with the longest end of the prefix."""
        if self.same_audio and source.startswith(prefix):
            return len(prefix)
        for n in range(min(MAX_NGRAM_SIZE, len(prefix)), self.min_ngram_size - 1, -1):
            ngram = prefix[-n:]
            if self.same_audio:
                match_ends = [i + n for i in range(len(source) - n) if source.startswith(ngram, i)]
                if match_ends:
                    return min(match_ends, key=lambda match_end: abs(match_end - len(prefix)))
            elif (found := source.rfind(ngram, 0, len(source) - 1)) >= 0:
                return found + n
        return None


def _as_string(tokens: Sequence[int]) -> str:
    """Return tokens as characters, since strings are searched fast."""
    return "".join(map(chr, tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assistant:
    """A smaller model that drafts from the same audio.

    Parameters
    ----------
    backend : Backend
    shares_encoder : bool
        Whether its encoder is the main model's, so that only the main model encodes.
    setup_ratio : float
        Time that it takes for a window before it can draft (to encode it, or to make keys and values of the main
        model's encoder output) over that of the main model's encoder, as expected from sizes; 0 is unknown.
    """

    backend: Backend
    shares_encoder: bool
    setup_ratio: float = 0.0

    def encode(self, mel: Floats, features: Features, positions: SparsePositions | None = None) -> Features:
        """Encode windows for the assistant.

        Parameters
        ----------
        mel : ndarray of shape (windows, n_mels, frames), float32
        features : Features
            Encoder output of the main model.
        positions : SparsePositions, optional
            The position of each two frames.
        """
        if self.shares_encoder:
            return self.backend.reuse_encoder_output(features)
        return self.backend.encode(mel, positions)


class AssistedCandidateGenerator:
    """A candidate generator that decodes with an assistant model, greedily, while its tokens are worth verifying.

    Parameters
    ----------
    backend : Backend
    features : callable
        Returns the encoded windows; called when the first token is requested.
    row_windows : sequence of int
        Window of each row.
    prompts : sequence of sequence of int
        Prompt of each row.
    logit_rules : LogitRules
        Those of the main model.
    """

    def __init__(
        self,
        backend: Backend,
        features: Callable[[], Features],
        row_windows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        logit_rules: LogitRules,
    ) -> None:
        self._backend, self._features, self._logit_rules = backend, features, logit_rules
        self._row_windows, self._prompts = row_windows, prompts
        self._seen: dict[int, list[int]] = {row: [] for row in range(len(prompts))}
        """Tokens that the assistant has read, of each row that has not ended."""
        self._session: Session | None = None
        self.forwards = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        """Return draft tokens for each request."""
        if not any(request.max_tokens for request in requests):
            return [DraftTokens() for _ in requests]
        session = self._session = self._session or self._backend.open_session(
            self._features(), self._row_windows, self._backend.dims.n_text_ctx
        )
        self._drop_finished_rows(session, [request.row for request in requests])
        builders = [_DraftBuilder(request) for request in requests]
        unread = self._rewind_to_accepted(session, requests)
        rules = self._logit_rules.greedy if self._backend.capabilities.picks_best else None
        while any(unread):
            if rules and len(requests) == 1 and builders[0].full_prefix:
                self._draft_in_one_call(cast(GreedySession, session), rules, builders[0], unread[0])
                break
            logits = session.extend(unread)
            self.forwards += 1
            drafting = [builder for builder, tokens in zip(builders, unread, strict=True) if tokens]
            self._logit_rules.apply(logits, [builder.full_prefix for builder in drafting])
            ids, logprobs = logits.top(1)
            for builder, (token,), (logprob,) in zip(drafting, ids.tolist(), logprobs.tolist(), strict=True):
                builder.add(token, math.exp(logprob), self._logit_rules.eot)
            unread = [
                builder.next_input if tokens else [] for builder, tokens in zip(builders, unread, strict=True)
            ]
            for request, tokens in zip(requests, unread, strict=True):
                self._seen[request.row] += tokens
        return [builder.draft_tokens for builder in builders]

    def _draft_in_one_call(
        self, session: GreedySession, rules: GreedyRules, builder: _DraftBuilder, unread: Sequence[int]
    ) -> None:
        request = builder.request
        left = len(request.prefix) + request.max_tokens - len(builder.full_prefix)
        picked = PickedSoFar(
            tokens=builder.full_prefix,
            left=left,
            unread=unread,
            calibration=request.calibration,
            least_prob=builder.least_prob / builder.joint_prob,
        )
        ids, logprobs = session.pick_best(rules, [picked], left)
        self.forwards += len(ids)
        for token, logprob in zip(ids[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True):
            builder.add(token, math.exp(logprob), self._logit_rules.eot)
        self._seen[request.row] += ids[:-1, 0].tolist()

    def _drop_finished_rows(self, session: Session, rows: Sequence[int]) -> None:
        """Drop the rows that have ended."""
        session_rows = list(self._seen)
        if session_rows != rows:
            session.reorder([session_rows.index(row) for row in rows])
            self._seen = {row: self._seen[row] for row in rows}

    def _rewind_to_accepted(self, session: Session, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Rewind the session to the tokens that were accepted, and return the unread ones of each requested row."""
        unread: list[list[int]] = []
        lengths: list[int] = []
        for request in requests:
            tokens = [*self._prompts[request.row], *request.prefix]
            # The last token is read again even if it was read before, for the logits behind it.
            n_accepted = min(common_prefix_length(self._seen[request.row], tokens), len(tokens) - 1)
            lengths.append(n_accepted)
            unread.append(tokens[n_accepted:] if request.max_tokens else [])
            self._seen[request.row] = tokens if request.max_tokens else tokens[:n_accepted]
        session.rewind(lengths)
        return unread


class _DraftBuilder:
    """The draft of one row as it grows."""

    def __init__(self, request: DraftRequest) -> None:
        self.request = request
        self.full_prefix = list(request.prefix)
        """The tokens of the row, the drafted ones included."""
        self._confidences: list[float] = []
        self.joint_prob = 1.0
        """Probability that all tokens drafted so far are accepted."""
        self._drafting = True
        self.least_prob = max(request.draft_threshold, request.verify_threshold)
        """Probability that all tokens are accepted, below which no further one is worth a step."""

    @property
    def next_input(self) -> list[int]:
        """The token to read next; none if the draft is complete."""
        return self.full_prefix[-1:] if self._drafting else []

    @property
    def draft_tokens(self) -> DraftTokens:
        """The draft so far."""
        return DraftTokens(tuple(self.full_prefix[len(self.request.prefix) :]), tuple(self._confidences))

    def add(self, token: int, confidence: float, eot: int) -> None:
        """Add a token if it is worth verifying; the draft is complete unless one more token is worth a step."""
        request = self.request
        self.joint_prob *= request.acceptance_prob(confidence)
        if self.joint_prob > request.verify_threshold:
            self.full_prefix.append(token)
            self._confidences.append(confidence)
        confident = self.joint_prob > self.least_prob
        self._drafting = confident and token != eot and len(self._confidences) < request.max_tokens

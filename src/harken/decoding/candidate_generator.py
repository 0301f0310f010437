"""Drafts: guesses at the next tokens, made by something cheap and verified by the model in one forward pass.

Whoever can make such guesses is a `Draft`. What it proposes changes how fast a text is decoded, never the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harken.contract import Backend, Features, Floats, Session
from harken.decoding.logit_rules import LogitRules


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """One row that may be drafted.

    Parameters
    ----------
    row : int
        Which row; it keeps its number for as long as the draft lives.
    prefix : sequence of int
        Tokens sampled in it so far, behind the prompt.
    limit : int
        Most tokens to propose; 0 for a row that is only to be kept in mind.
    trust : float
        How much more often than a draft thinks its tokens are accepted in this row, as measured.
    floor : float
        A token is not worth a further step of the draft if the chance that all before it are accepted is lower than
        this.
    least : float
        A token that has been thought of is not worth verifying if the chance that it and all before it are accepted is
        lower than this.
    """

    row: int
    prefix: Sequence[int]
    max_tokens: int
    calibration: float = 1.0
    draft_threshold: float = 0.0
    verify_threshold: float = 0.0

    def acceptance_prob(self, confidence: float) -> float:
        """Chance that a token is accepted if its draft claims this one."""
        return min(confidence * self.calibration, 0.99)


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """Tokens that may come next.

    Parameters
    ----------
    tokens : tuple of int
    claimed : tuple of float
        With which probability, by the draft's own account, each is right if those before it are.
    """

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()


class CandidateGenerator(Protocol):
    """Guesses for the rows of one decode."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        """Guess what follows, one proposal for each row asked for, maybe an empty one.

        Rows that were asked for before and are missing now have ended.
        """
        ...

    @property
    def forwards(self) -> int:
        """Forward passes that guessing has taken so far."""
        ...


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


MAX_NGRAM_SIZE = 4
MAX_CONTINUATION_TOKENS = 96


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Go on as some text went on where the same tokens stood in it.

    Parameters
    ----------
    texts : list of sequence of int
        One a row.
    same_audio : bool
        Whether the text of a row is an earlier hypothesis of what is being decoded: its beginning is what a row
        that has no tokens yet is expected to say, and of several places the one at the same distance is meant.
        Otherwise the text so far is searched too, and the last place is meant.
    shortest_match : int
        How many tokens have to be the same.
    claim : float
        Probability with which each token is taken to be right.
    allows : callable
        Whether a token may follow a prefix (`Rules.allows`); one that may not ends the proposal before it.
    timestamp_begin : int or None
        Ids from here on are timestamps: a hypothesis that has none, as of a stream, goes on behind what was said.
    """

    source_tokens: Sequence[Sequence[int]]
    same_audio: bool = False
    min_ngram_size: int = 3
    confidence: float = 0.5
    allows: Callable[[Sequence[int], int], bool] = lambda prefix, token: True
    timestamp_begin: int | None = None
    forwards: int = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> DraftTokens:
        joint_prob, tokens = 1.0, list[int]()
        for token in self._continuation(request.row, request.prefix)[
            : min(request.max_tokens, MAX_CONTINUATION_TOKENS)
        ]:
            joint_prob *= request.acceptance_prob(self.confidence)
            if joint_prob <= request.verify_threshold or not self.allows((*request.prefix, *tokens), token):
                break
            tokens.append(token)
        return DraftTokens(tuple(tokens), (self.confidence,) * len(tokens))

    def _continuation(self, row: int, prefix: Sequence[int]) -> Sequence[int]:
        """What comes next as far as the text tells."""
        source = self.source_tokens[row] if self.same_audio else (*self.source_tokens[row], *prefix)
        text_tokens = [token for token in prefix if not self._is_timestamp(token)]
        match_timestamps = len(text_tokens) == len(prefix) or any(map(self._is_timestamp, source))
        start = self._match_end(_as_string(source), _as_string(prefix if match_timestamps else text_tokens))
        if start is None:
            return ()
        # A segment usually begins where the one before it ended.
        segment_ended = (
            not match_timestamps
            and start < len(source)
            and [self._is_timestamp(token_id) for token_id in prefix[-2:]] == [False, True]
        )
        return (*prefix[-1:], *source[start:]) if segment_ended else source[start:]

    def _is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin is not None and token >= self.timestamp_begin

    def _match_end(self, source: str, prefix: str) -> int | None:
        """Where in the text it goes on behind the longest end of the prefix that is found there."""
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
    """Tokens as characters, since strings are searched fast."""
    return "".join(map(chr, tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assistant:
    """A model that hears what the main model hears.

    Parameters
    ----------
    backend : Backend
    shares_encoder : bool
        Whether its encoder is the main model's, so that only the main model encodes.
    """

    backend: Backend
    shares_encoder: bool

    def encode(self, mel: Floats, features: Features) -> Features:
        """Encode windows for the assistant.

        Parameters
        ----------
        mel : ndarray of shape (audios, n_mels, frames), float32
        features : Features
            What the main model made of them.
        """
        return self.backend.reuse_encoder_output(features) if self.shares_encoder else self.backend.encode(mel)


class AssistedCandidateGenerator:
    """`harken.decoding.candidate_generator.Draft` by a model: greedy, under the same rules, for as long as it is sure enough.

    Parameters
    ----------
    backend : Backend
    features : callable
        Gives the encoded windows; called when the first token is asked for.
    audios : sequence of int
        Window of each row.
    prompts : sequence of sequence of int
        Prompt of each row.
    rules : Rules
    """

    def __init__(
        self,
        backend: Backend,
        features: Callable[[], Features],
        row_windows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        logit_rules: LogitRules,
    ) -> None:
        self._backend, self._features, self._row_windows, self._logit_rules = (
            backend,
            features,
            row_windows,
            logit_rules,
        )
        self._seen_tokens: dict[int, list[int]] = {row: [] for row in range(len(row_windows))}
        self._prompts = prompts
        self._session: Session | None = None
        self.forwards = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        if not any(ask.max_tokens for ask in requests):
            return [DraftTokens() for _ in requests]
        session = self._open_session()
        self._drop_finished_rows(session, [ask.row for ask in requests])
        builders = {request.row: _DraftBuilder(request) for request in requests}
        unread = self._rewind_to_accepted(session, requests)
        while any(unread):
            logits = session.extend(unread)
            self.forwards += 1
            drafting_rows = [ask.row for ask, tokens in zip(requests, unread, strict=True) if tokens]
            self._logit_rules.apply(logits, [builders[row].full_prefix for row in drafting_rows])
            ids, logprobs = logits.top(1)
            for row, token, logprob in zip(
                drafting_rows, ids[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True
            ):
                builders[row].add(token, float(np.exp(logprob)), self._logit_rules.eot)
            unread = [builders[ask.row].next_input if ask.row in drafting_rows else [] for ask in requests]
            for ask, tokens in zip(requests, unread, strict=True):
                self._seen_tokens[ask.row] += tokens
        return [builders[ask.row].draft_tokens for ask in requests]

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = self._backend.open_session(
                self._features(), self._row_windows, self._backend.dims.n_text_ctx
            )
        return self._session

    def _drop_finished_rows(self, session: Session, rows: Sequence[int]) -> None:
        """Drop the rows that have ended."""
        session_rows = list(self._seen_tokens)
        if session_rows != list(rows):
            session.reorder([session_rows.index(row) for row in rows])
            self._seen_tokens = {row: self._seen_tokens[row] for row in rows}

    def _rewind_to_accepted(self, session: Session, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Forget what was not accepted; what each row that is asked for has not read yet."""
        unread: list[list[int]] = []
        lengths = list(session.lengths)
        for i, request in enumerate(requests):
            tokens = [*self._prompts[request.row], *request.prefix]
            seen = self._seen_tokens[request.row]
            # The last token is read anew even if it was read before, as what it predicts is wanted.
            lengths[i] = min(common_prefix_length(seen, tokens), len(tokens) - 1)
            unread.append(tokens[lengths[i] :] if request.max_tokens else [])
            self._seen_tokens[request.row] = tokens if request.max_tokens else seen[: lengths[i]]
        session.rewind(lengths)
        return unread


class _DraftBuilder:
    """What is proposed for one row, as it grows."""

    def __init__(self, request: DraftRequest) -> None:
        self._request = request
        self._tokens: list[int] = []
        self._confidences: list[float] = []
        self._joint_prob = 1.0
        self._drafting = True

    @property
    def full_prefix(self) -> list[int]:
        return [*self._request.prefix, *self._tokens]

    @property
    def next_input(self) -> list[int]:
        """The token to go on from; none if this is all."""
        return self._tokens[-1:] if self._drafting else []

    @property
    def draft_tokens(self) -> DraftTokens:
        return DraftTokens(tuple(self._tokens), tuple(self._confidences))

    def add(self, token: int, confidence: float, eot: int) -> None:
        """Add a token if that is worth verifying, and go on if a further one is worth a step."""
        self._joint_prob *= self._request.acceptance_prob(confidence)
        if self._joint_prob > self._request.verify_threshold:
            self._tokens.append(token)
            self._confidences.append(confidence)
        confident = self._joint_prob > max(self._request.draft_threshold, self._request.verify_threshold)
        self._drafting = confident and token != eot and len(self._tokens) < self._request.max_tokens

"""A smaller model that drafts for a larger one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Features, Floats, Session
from harken.decoding.candidate_generator import DraftRequest, DraftTokens, common_prefix_length
from harken.decoding.logit_rules import LogitRules


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

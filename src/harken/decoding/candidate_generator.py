"""Candidate generators: cheap sources of draft tokens, which the model verifies in one forward pass.

Tokens are looked up in earlier text (`PromptLookup`), or in an earlier hypothesis (`HypothesisLookup`), or decoded by a
smaller model (`AssistedCandidateGenerator`). They change the speed of decoding, never the text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from harken.contract import (
    Backend,
    Features,
    Floats,
    GreedyRules,
    GreedySession,
    PickedSoFar,
    Session,
)
from harken.decoding.draft_controller import AcceptanceCounter
from harken.decoding.logit_rules import LogitRules


@dataclass(slots=True, kw_only=True)
class Draft:
    """The draft of one row, which a candidate generator extends.

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
        generator; at least `verify_threshold`.
    verify_threshold : float
        Probability that a drafted token and all before it are accepted, below which it is not worth verifying.

    Attributes
    ----------
    tokens : list of int
        Drafted tokens.
    confidences : list of float
        Probability, as estimated by the generator, that each is right if those before it are.
    joint_prob : float
        Probability that all of them are accepted, and the one that was not worth verifying.
    """

    row: int
    prefix: Sequence[int]
    max_tokens: int
    calibration: float = 1.0
    draft_threshold: float = 0.0
    verify_threshold: float = 0.0
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    joint_prob: float = 1.0

    @property
    def text(self) -> list[int]:
        """Tokens of the row, the drafted ones included."""
        return [*self.prefix, *self.tokens]

    def add(self, token: int, confidence: float) -> bool:
        """Add a token if it is worth verifying, and return whether it is."""
        self.joint_prob *= min(confidence * self.calibration, 0.99)
        if self.joint_prob <= self.verify_threshold:
            return False
        self.tokens.append(token)
        self.confidences.append(confidence)
        return True


class CandidateGenerator(ABC):
    """A source of draft tokens for the rows of one decode.

    Parameters
    ----------
    counter : AcceptanceCounter
        Of the drafts of such a source in all decodes.

    Attributes
    ----------
    needs_setup : bool
        Whether it encodes windows before its first draft.
    forwards : int
        Number of forward passes that drafting has taken so far.
    """

    needs_setup = False

    def __init__(self, counter: AcceptanceCounter) -> None:
        self.counter, self.forwards = counter, 0
        self._row_counters: defaultdict[int, AcceptanceCounter] = defaultdict(AcceptanceCounter)

    @abstractmethod
    def propose(self, drafts: Sequence[Draft]) -> None:
        """Extend drafts that have no tokens yet.

        Rows of which earlier calls had drafts and this one does not have ended.
        """

    def calibration(self, row: int) -> float:
        """Return the calibration of a row, smoothed towards that of all decodes."""
        return self._row_counters[row].calibration(self.counter.calibration())

    def record_accepted(self, row: int, expected: float, accepted: int) -> None:
        """Record how many tokens of a draft were expected to be accepted, and how many were."""
        self.counter.add(expected, accepted)
        self._row_counters[row].add(expected, accepted)


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


MIN_NGRAM_SIZE, MAX_NGRAM_SIZE = 3, 4
"""Tokens that have to match in earlier text, and those that are sought first."""


class PromptLookup(CandidateGenerator):
    """A candidate generator that finds the last tokens in the text so far, and continues as it went on there.

    Parameters
    ----------
    source_tokens : list of sequence of int
        Earlier text, one a row, which is searched as well.
    logit_rules : LogitRules
        A token that they do not allow ends the draft before it.
    counter : AcceptanceCounter
    """

    confidence = 0.5
    """Probability that each token is right."""

    def __init__(
        self,
        source_tokens: Sequence[Sequence[int]],
        logit_rules: LogitRules,
        counter: AcceptanceCounter,
    ) -> None:
        super().__init__(counter)
        self._source_tokens, self._logit_rules = source_tokens, logit_rules

    def propose(self, drafts: Sequence[Draft]) -> None:
        """Extend each draft as far as it is worth verifying."""
        for draft in drafts:
            continuation = self._continuation(self._source_tokens[draft.row], draft.prefix)
            for token in continuation[: draft.max_tokens]:
                if not (self._logit_rules.allows(draft.text, token) and draft.add(token, self.confidence)):
                    break

    def _continuation(self, source: Sequence[int], prefix: Sequence[int]) -> Sequence[int]:
        """Return the tokens behind the last match with the longest end of the prefix; none without a match."""
        source = (*source, *prefix)
        text, ending = _as_string(source), _as_string(prefix[-MAX_NGRAM_SIZE:])
        for n in range(len(ending), MIN_NGRAM_SIZE - 1, -1):
            if (found := text.rfind(ending[-n:], 0, len(text) - 1)) >= 0:
                return source[found + n :]
        return ()


class HypothesisLookup(PromptLookup):
    """A candidate generator that continues as an earlier hypothesis of the same audio does, from where it agrees.

    Parameters
    ----------
    source_tokens : list of sequence of int
        The hypothesis of each row. One without any timestamps, such as that of a stream, is matched by its text alone.
    logit_rules, counter
        As for `PromptLookup`.
    """

    confidence = 0.9

    def _continuation(self, source: Sequence[int], prefix: Sequence[int]) -> Sequence[int]:
        begin = self._logit_rules.timestamp_begin
        has_timestamps = any(token >= begin for token in source)
        if not (prefix or has_timestamps):
            return (begin, *source)  # most windows begin with speech
        sought = prefix if has_timestamps else [token for token in prefix if token < begin]
        start = _match_end(_as_string(source), _as_string(sought))
        # Most segments begin at the time at which the one before them ended.
        segment_ended = not has_timestamps and [token >= begin for token in prefix[-2:]] == [False, True]
        repeated = prefix[-1:] if segment_ended and start < len(source) else ()
        return (*repeated, *source[start:])


def _match_end(source: str, prefix: str) -> int:
    """Return the index in a hypothesis behind its match with the longest end of the prefix; its end without a match.

    If it does not begin with the prefix, the match at the nearest distance from the beginning counts.
    """
    if source.startswith(prefix):
        return len(prefix)
    for n in range(min(MAX_NGRAM_SIZE, len(prefix)), 0, -1):
        ngram = prefix[-n:]
        if match_ends := [i + n for i in range(len(source) - n) if source.startswith(ngram, i)]:
            return min(match_ends, key=lambda match_end: abs(match_end - len(prefix)))
    return len(source)


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

    def encode(self, mel: Floats, features: Features, *, padded: bool = False) -> Features:
        """Encode windows for the assistant.

        Parameters
        ----------
        mel : ndarray of shape (windows, n_mels, frames), float32
        features : Features
            Encoder output of the main model.
        padded : bool
            True if padding follows (see `harken.contract.Backend.encode`).
        """
        if self.shares_encoder:
            return self.backend.reuse_encoder_output(features)
        return self.backend.encode(mel, padded=padded)


class AssistedCandidateGenerator(CandidateGenerator):
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
    counter : AcceptanceCounter
    """

    needs_setup = True

    def __init__(
        self,
        backend: Backend,
        features: Callable[[], Features],
        row_windows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        logit_rules: LogitRules,
        counter: AcceptanceCounter,
    ) -> None:
        super().__init__(counter)
        self._backend, self._features, self._logit_rules = backend, features, logit_rules
        self._row_windows, self._prompts = row_windows, prompts
        self._seen: dict[int, list[int]] = {row: [] for row in range(len(prompts))}
        """Tokens that the assistant has read, of each row that has not ended."""
        self._session: Session | None = None

    def propose(self, drafts: Sequence[Draft]) -> None:
        """Extend each draft by the most probable tokens, one step of all at a time."""
        if not any(draft.max_tokens for draft in drafts):
            return
        session = self._session = self._session or self._backend.open_session(
            self._features(), self._row_windows, self._backend.dims.n_text_ctx
        )
        self._drop_finished_rows(session, [draft.row for draft in drafts])
        unread = self._rewind_to_accepted(session, drafts)
        rules = self._logit_rules.greedy if self._backend.capabilities.picks_best else None
        while any(unread):
            if rules and len(drafts) == 1 and drafts[0].text:
                self._draft_in_one_call(cast(GreedySession, session), rules, drafts[0], unread[0])
                break
            logits = session.extend(unread)
            self.forwards += 1
            drafting = [draft for draft, tokens in zip(drafts, unread, strict=True) if tokens]
            self._logit_rules.apply(logits, [draft.text for draft in drafting])
            ids, logprobs = logits.top(1)
            for draft, (token,), (logprob,) in zip(drafting, ids.tolist(), logprobs.tolist(), strict=True):
                draft.add(token, math.exp(logprob))
            unread = [
                draft.tokens[-1:] if tokens and self._is_worth_a_step(draft) else []
                for draft, tokens in zip(drafts, unread, strict=True)
            ]
            for draft, tokens in zip(drafts, unread, strict=True):
                self._seen[draft.row] += tokens

    def _is_worth_a_step(self, draft: Draft) -> bool:
        """Return whether one more token of a draft is worth a step."""
        return (
            draft.joint_prob > draft.draft_threshold
            and draft.tokens[-1] != self._logit_rules.eot
            and len(draft.tokens) < draft.max_tokens
        )

    def _draft_in_one_call(
        self, session: GreedySession, rules: GreedyRules, draft: Draft, unread: Sequence[int]
    ) -> None:
        left = draft.max_tokens - len(draft.tokens)
        picked = PickedSoFar(
            tokens=draft.text,
            left=left,
            unread=unread,
            calibration=draft.calibration,
            least_prob=draft.draft_threshold / draft.joint_prob,
        )
        ids, logprobs = session.pick_best(rules, [picked], left)
        self.forwards += len(ids)
        for token, logprob in zip(ids[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True):
            draft.add(token, math.exp(logprob))
        self._seen[draft.row] += ids[:-1, 0].tolist()

    def _drop_finished_rows(self, session: Session, rows: Sequence[int]) -> None:
        """Drop the rows that have ended."""
        session_rows = list(self._seen)
        if session_rows != rows:
            session.reorder([session_rows.index(row) for row in rows])
            self._seen = {row: self._seen[row] for row in rows}

    def _rewind_to_accepted(self, session: Session, drafts: Sequence[Draft]) -> list[list[int]]:
        """Rewind the session to the tokens that were accepted, and return the unread ones of each row to draft for."""
        unread: list[list[int]] = []
        lengths: list[int] = []
        for draft in drafts:
            tokens = [*self._prompts[draft.row], *draft.prefix]
            # The last token is read again even if it was read before, for the logits behind it.
            n_accepted = min(common_prefix_length(self._seen[draft.row], tokens), len(tokens) - 1)
            lengths.append(n_accepted)
            unread.append(tokens[n_accepted:] if draft.max_tokens else [])
            self._seen[draft.row] = tokens if draft.max_tokens else tokens[:n_accepted]
        session.rewind(lengths)
        return unread

"""A smaller model that drafts for a larger one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Features, Floats, Session
from harken.decoding.drafts import Ask, Proposal, common
from harken.decoding.rules import Rules


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

    def listen(self, mel: Floats, features: Features) -> Features:
        """Encode windows for the assistant.

        Parameters
        ----------
        mel : ndarray of shape (audios, n_mels, frames), float32
        features : Features
            What the main model made of them.
        """
        return self.backend.adopt(features) if self.shares_encoder else self.backend.encode(mel)


class AssistantDraft:
    """`harken.decoding.drafts.Draft` by a model: greedy, under the same rules, for as long as it is sure enough.

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
        audios: Sequence[int],
        prompts: Sequence[Sequence[int]],
        rules: Rules,
    ) -> None:
        self._backend, self._features, self._audios, self._rules = backend, features, audios, rules
        self._read: dict[int, list[int]] = {row: [] for row in range(len(audios))}
        self._prompts = prompts
        self._session: Session | None = None
        self.forwards = 0

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        if not any(ask.limit for ask in asks):
            return [Proposal() for _ in asks]
        session = self._open()
        self._keep(session, [ask.row for ask in asks])
        guesses = {ask.row: _Guess(ask) for ask in asks}
        new = self._catch_up(session, asks)
        while any(new):
            logits = session.extend(new)
            self.forwards += 1
            asked = [ask.row for ask, tokens in zip(asks, new, strict=True) if tokens]
            self._rules.apply(logits, [guesses[row].text for row in asked])
            ids, logprobs = logits.top(1)
            for row, token, logprob in zip(asked, ids[:, 0].tolist(), logprobs[:, 0].tolist(), strict=True):
                guesses[row].take(token, float(np.exp(logprob)), self._rules.eot)
            new = [guesses[ask.row].next if ask.row in asked else [] for ask in asks]
            for ask, tokens in zip(asks, new, strict=True):
                self._read[ask.row] += tokens
        return [guesses[ask.row].proposal for ask in asks]

    def _open(self) -> Session:
        if self._session is None:
            self._session = self._backend.open(self._features(), self._audios, self._backend.dims.n_text_ctx)
        return self._session

    def _keep(self, session: Session, rows: Sequence[int]) -> None:
        """Drop the rows that have ended."""
        held = list(self._read)
        if held != list(rows):
            session.select([held.index(row) for row in rows])
            self._read = {row: self._read[row] for row in rows}

    def _catch_up(self, session: Session, asks: Sequence[Ask]) -> list[list[int]]:
        """Forget what was not accepted; what each row that is asked for has not read yet."""
        new: list[list[int]] = []
        lengths = list(session.lengths)
        for i, ask in enumerate(asks):
            text = [*self._prompts[ask.row], *ask.prefix]
            read = self._read[ask.row]
            # The last token is read anew even if it was read before, as what it predicts is wanted.
            lengths[i] = min(common(read, text), len(text) - 1)
            new.append(text[lengths[i] :] if ask.limit else [])
            self._read[ask.row] = text if ask.limit else read[: lengths[i]]
        session.rewind(lengths)
        return new


class _Guess:
    """What is proposed for one row, as it grows."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._tokens: list[int] = []
        self._claimed: list[float] = []
        self._reach = 1.0
        self._open = True

    @property
    def text(self) -> list[int]:
        return [*self._ask.prefix, *self._tokens]

    @property
    def next(self) -> list[int]:
        """The token to go on from; none if this is all."""
        return self._tokens[-1:] if self._open else []

    @property
    def proposal(self) -> Proposal:
        return Proposal(tuple(self._tokens), tuple(self._claimed))

    def take(self, token: int, claimed: float, eot: int) -> None:
        """Add a token if that is worth verifying, and go on if a further one is worth a step."""
        self._reach *= self._ask.chance(claimed)
        if self._reach > self._ask.least:
            self._tokens.append(token)
            self._claimed.append(claimed)
        sure = self._reach > max(self._ask.floor, self._ask.least)
        self._open = sure and token != eot and len(self._tokens) < self._ask.limit

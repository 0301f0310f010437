"""Beam search with patience, over one window or many.

Source: openai/whisper, decoding.py, BeamSearchDecoder; Kasai et al. 2022, "A Call for Clarity in Beam Search".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harken.contract import Floats, Logits, Session
from harken.decoding.hypothesis import Hypothesis, Listen, Observer, Step, deaf
from harken.decoding.rules import Rules
from harken.decoding.strategies import Beam


@dataclass(frozen=True, slots=True)
class _Path:
    """A hypothesis in work: its tokens, their log-probabilities, and the row of the session it extends."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    total: float
    parent: int
    attention: Floats | None = None

    def extended(self, token: int, logprob: float, parent: int) -> _Path:
        return _Path((*self.tokens, token), (*self.logprobs, logprob), self.total + logprob, parent)

    def hypothesis(self, eot: int) -> Hypothesis:
        tokens = self.tokens[:-1] if self.tokens[-1] == eot else self.tokens
        return Hypothesis(tokens=tokens, logprobs=self.logprobs, attention=self.attention)


@dataclass(slots=True)
class _Search:
    """The beam of one window."""

    beam: Beam
    eot: int
    limit: int
    listen: Listen
    paths: list[_Path] = field(default_factory=lambda: [_Path((), (), 0.0, 0)])
    finished: list[_Path] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        return max(1, round(self.beam.width * self.beam.patience))

    @property
    def done(self) -> bool:
        return not self.paths or len(self.finished) >= self.wanted or len(self.paths[0].tokens) >= self.limit

    def advance(self, candidates: list[_Path]) -> None:
        """Keep the best candidates; those that have ended are set aside until enough have.

        What is set aside takes its attention along, as its row will be gone at the next step.
        """
        ended: list[_Path] = []
        self.paths = []
        for candidate in sorted(candidates, key=lambda path: -path.total):
            if candidate.tokens[-1] == self.eot:
                ended.append(candidate)
            else:
                self.paths.append(candidate)
                if len(self.paths) == self.beam.width:
                    break
        self._set_aside(ended[: max(0, self.wanted - len(self.finished))])
        if self.done:
            self._set_aside(self.paths[: max(0, self.beam.width - len(self.finished))])

    def results(self) -> list[Hypothesis]:
        """What has ended, made up to the width with the best of what has not."""
        return [path.hypothesis(self.eot) for path in self.finished]

    def _set_aside(self, paths: list[_Path]) -> None:
        self.finished += [replace(path, attention=self.listen(path.parent, len(path.tokens))) for path in paths]


def search(
    session: Session,
    logits: Logits,
    rules: Rules,
    beam: Beam,
    limits: Sequence[int],
    observe: Observer,
    listen: Listen = deaf,
) -> list[list[Hypothesis]]:
    """Search every row of a session that has read its prompts.

    Parameters
    ----------
    session : Session
        One row a window; becomes one row a hypothesis.
    logits : Logits
        After the last token of each prompt.
    rules : Rules
    beam : Beam
    limits : sequence of int
        Most tokens to sample in each window.
    observe : Observer
    listen : Listen
        Asked for the attention of every hypothesis that is set aside.

    Returns
    -------
    list of list of Hypothesis
        For each window the finished hypotheses, in the order in which they ended.
    """
    searches = [_Search(beam, rules.eot, limit, listen) for limit in limits]
    active = list(enumerate(searches))
    while True:
        rules.apply(logits, [path.tokens for _, its in active for path in its.paths])
        ids, logprobs = logits.top(beam.width + 1)
        row = 0
        for window, its in active:
            candidates: list[_Path] = []
            for path in its.paths:
                options = zip(ids[row].tolist(), logprobs[row].tolist(), strict=True)
                candidates += [path.extended(token, logprob, row) for token, logprob in options]
                row += 1
            its.advance(candidates)
            lead = max(candidates, key=lambda path: path.total)
            step = Step(
                row=window, index=len(lead.tokens) - 1, token=lead.tokens[-1], logprob=lead.logprobs[-1]
            )
            observe(step)
        active = [(window, its) for window, its in active if not its.done]
        if not active:
            break
        paths = [path for _, its in active for path in its.paths]
        session.select([path.parent for path in paths])
        logits = session.extend([path.tokens[-1:] for path in paths])
    return [its.results() for its in searches]

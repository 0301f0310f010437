"""Beam search with patience, over one window or many.

Source: openai/whisper, decoding.py, BeamSearchDecoder; Kasai et al. 2022, "A Call for Clarity in Beam Search".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harken.contract import Logits, Session
from harken.decoding.generate import LoopRule, Row
from harken.decoding.logit_rules import LogitRules
from harken.decoding.types import AttentionCapture, Beam, Hypothesis, Observer, Step, no_attention


@dataclass(frozen=True, slots=True)
class _BeamHypothesis:
    """An unfinished hypothesis: its tokens, their log-probabilities, and the row of the session that it extends."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    sum_logprob: float
    parent_row: int

    def extend(self, token: int, logprob: float, parent_row: int) -> _BeamHypothesis:
        return _BeamHypothesis(
            (*self.tokens, token), (*self.logprobs, logprob), self.sum_logprob + logprob, parent_row
        )


@dataclass(slots=True)
class _BeamState:
    """The beam of one window."""

    beam: Beam
    eot: int
    limit: int
    capture: AttentionCapture
    loop_rule: LoopRule | None
    loops: bool = False
    unfinished: list[_BeamHypothesis] = field(default_factory=lambda: [_BeamHypothesis((), (), 0.0, 0)])
    finished: list[Hypothesis] = field(default_factory=list)

    @property
    def max_finished(self) -> int:
        return max(1, round(self.beam.width * self.beam.patience))

    @property
    def done(self) -> bool:
        best = self.unfinished[0]
        return self.loops or len(self.finished) >= self.max_finished or len(best.tokens) >= self.limit

    def advance(self, candidates: list[_BeamHypothesis]) -> None:
        """Keep the best candidates, and set those aside that have ended, until there are enough of them.

        When the search is done, the best unfinished ones make the others up to the width. The attention of a hypothesis
        is captured when it is set aside, since its row is gone at the next step.
        """
        ended: list[_BeamHypothesis] = []
        self.unfinished = []
        for candidate in sorted(candidates, key=lambda path: -path.sum_logprob):
            if candidate.tokens[-1] == self.eot:
                ended.append(candidate)
            else:
                self.unfinished.append(candidate)
                if len(self.unfinished) == self.beam.width:
                    break
        if self.loop_rule:
            self.loops = self.loop_rule.stops(self.unfinished[0].tokens)
        self._finish(ended[: self.max_finished - len(self.finished)])
        if self.done:
            self._finish(self.unfinished[: max(0, self.beam.width - len(self.finished))])

    def _finish(self, paths: Sequence[_BeamHypothesis]) -> None:
        for path in paths:
            attention = self.capture(path.parent_row, len(path.tokens))
            self.finished.append(Hypothesis.from_picked(path.tokens, path.logprobs, self.eot, attention))


def beam_search(
    session: Session,
    logits: Logits,
    logit_rules: LogitRules,
    beam: Beam,
    rows: Sequence[Row],
    observe: Observer,
    capture: AttentionCapture = no_attention,
    *,
    loop_rule: LoopRule | None = None,
) -> tuple[list[list[Hypothesis]], int]:
    """Search every row of a session that has read its prompts.

    Parameters
    ----------
    session : Session
        One row a window; becomes one row a hypothesis.
    logits : Logits
        Behind the last token of each prompt.
    logit_rules, beam, observe
        As for `harken.decoding.decode_windows.decode`.
    rows : sequence of Row
        One a window, which say how many tokens may be picked, and where its speech ends.
    capture : callable
        Called for the attention of every hypothesis that is set aside.
    loop_rule : LoopRule or None
        Ends a search whose best hypothesis is in a loop.

    Returns
    -------
    hypotheses : list of list of Hypothesis
        For each window the finished hypotheses, in the order in which they ended.
    forwards : int
        Number of forward passes.
    """
    states = [_BeamState(beam, logit_rules.eot, each.limit, capture, loop_rule) for each in rows]
    active = list(enumerate(states))
    forwards = 0
    while True:
        logit_rules.apply(
            logits,
            [path.tokens for _, state in active for path in state.unfinished],
            [rows[window].speech_end for window, state in active for _ in state.unfinished],
        )
        ids, logprobs = logits.top(beam.width + 1)
        row = 0
        for window, state in active:
            candidates: list[_BeamHypothesis] = []
            for path in state.unfinished:
                options = zip(ids[row].tolist(), logprobs[row].tolist(), strict=True)
                candidates += [path.extend(token, logprob, row) for token, logprob in options]
                row += 1
            state.advance(candidates)
            best = max(candidates, key=lambda path: path.sum_logprob)
            index = len(best.tokens) - 1
            observe(Step(row=window, index=index, token=best.tokens[-1], logprob=best.logprobs[-1]))
        active = [(window, state) for window, state in active if not state.done]
        if not active:
            return [state.finished for state in states], forwards
        paths = [path for _, state in active for path in state.unfinished]
        session.reorder([path.parent_row for path in paths])
        logits = session.extend([path.tokens[-1:] for path in paths])
        forwards += 1

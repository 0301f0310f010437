"""Fake sources of draft tokens for speculative decoding: of known accuracy, at a known cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fakes.backends import EOT, N_VOCAB
from fakes.clock import FakeClock
from harken.decoding import SpeculativeDecoder
from harken.decoding.candidate_generator import CandidateGenerator, Draft
from harken.decoding.draft_controller import MIN_MEASUREMENTS, AcceptanceCounter, DraftController
from harken.decoding.logit_rules import LogitRules
from harken.decoding.speculation import DraftSession


def unrestricted_rules() -> LogitRules:
    """Make rules over the vocabulary of `N_VOCAB` tokens that forbid nothing."""
    return LogitRules(
        eot=EOT,
        timestamp_begin=N_VOCAB,
        suppressed=np.array([], np.int64),
        first_banned=(),
        timestamps=False,
        max_initial_timestamp=None,
    )


def measured_controller() -> DraftController:
    """Make a controller that has all its measurements, on a clock that stands still: it always drafts."""
    controller = DraftController(float)
    for _ in range(MIN_MEASUREMENTS):
        controller.record_step(n_rows=1, width=1, n_new_tokens=1, verify_s=0.0, draft_s=0.0)
    return controller


def eager_decoder(**sources: Any) -> SpeculativeDecoder:
    """Make a decoder that drafts whenever it can, on a clock that stands still."""
    decoder = SpeculativeDecoder(float, **sources)
    decoder.greedy, decoder.sampling = measured_controller(), measured_controller()
    return decoder


def open_drafts(
    *generators: CandidateGenerator,
    controller: DraftController | None = None,
    counters: Sequence[AcceptanceCounter] = (),
) -> DraftSession:
    """Open drafting by generators in the order in which they are asked, with what was counted of each before."""
    for generator, counter in zip(generators, counters, strict=False):
        generator.counter = counter
    return DraftSession(controller or measured_controller(), [*generators])


class FakeCandidateGenerator(CandidateGenerator):
    """A `CandidateGenerator` that is given the texts with their ends, and may be wrong.

    A wrong guess, by row and index, is a neighbouring id; every guess claims the same probability. A forward pass takes
    `step_s` on the clock, the first one `setup_s` in addition.
    """

    needs_setup = True

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        is_correct: Callable[[int, int], bool] = lambda row, index: True,
        *,
        claim: float = 0.95,
        clock: FakeClock | None = None,
        step_s: float = 0.0,
        setup_s: float = 0.0,
    ) -> None:
        super().__init__(AcceptanceCounter())
        self.texts, self.is_correct, self.claim = texts, is_correct, claim
        self.clock, self.step_s, self.setup_s = clock, step_s, setup_s
        self.asked: list[list[int]] = []
        """Most tokens of each draft, of every call."""

    def propose(self, drafts: Sequence[Draft]) -> None:
        self.asked.append([draft.max_tokens for draft in drafts])
        for draft in drafts:
            self._extend(draft)
        if self.clock and any(draft.max_tokens for draft in drafts):
            # The token below the threshold has been computed, too.
            forwards = max(min(len(draft.tokens) + 1, draft.max_tokens) for draft in drafts)
            self.clock.spend(forwards * self.step_s + (0.0 if self.forwards else self.setup_s))
            self.forwards += forwards

    def _extend(self, draft: Draft) -> None:
        text = self.texts[draft.row]
        for index in range(len(draft.prefix), min(len(text), len(draft.prefix) + draft.max_tokens)):
            if draft.joint_prob * self.claim * draft.calibration < draft.draft_threshold:
                break
            draft.add(text[index] if self.is_correct(draft.row, index) else text[index] ^ 1, self.claim)


def correct_with_probability(probability: float) -> Callable[[int, int], bool]:
    """Make guesses that are correct at a random share of all indices, always the same ones."""
    return lambda row, index: bool(np.random.default_rng((0, row, index)).random() < probability)

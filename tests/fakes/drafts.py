"""Fake sources of draft tokens for speculative decoding: of known accuracy, at a known cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fakes.backends import EOT, N_VOCAB
from fakes.clock import FakeClock
from harken.decoding import SpeculativeDecoder
from harken.decoding.candidate_generator import CandidateGenerator, DraftRequest, DraftTokens
from harken.decoding.draft_controller import MIN_MEASUREMENTS, AcceptanceCounter, DraftController
from harken.decoding.logit_rules import LogitRules
from harken.decoding.speculation import DraftSession, _CalibratedGenerator


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
    for statistics in (decoder.greedy, decoder.sampling):
        statistics.controller = measured_controller()
    return decoder


def open_drafts(
    *generators: CandidateGenerator,
    controller: DraftController | None = None,
    counters: Sequence[AcceptanceCounter] = (),
) -> DraftSession:
    """Open drafting by generators in the order in which they are asked, with what was counted of each before."""
    counted = zip(generators, counters or [AcceptanceCounter() for _ in generators], strict=True)
    sources = [_CalibratedGenerator(*source, needs_setup=True) for source in counted]
    return DraftSession(controller or measured_controller(), sources)


class FakeCandidateGenerator:
    """A `CandidateGenerator` that is given the texts with their ends, and may be wrong.

    A wrong guess, by row and index, is a neighbouring id; every guess claims the same probability. A forward pass takes
    `step_s` on the clock, the first one `setup_s` in addition.
    """

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
        self.texts, self.is_correct, self.claim = texts, is_correct, claim
        self.clock, self.step_s, self.setup_s = clock, step_s, setup_s
        self.forwards = 0
        self.asked: list[list[DraftRequest]] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        self.asked.append([replace(request, prefix=tuple(request.prefix)) for request in requests])
        drafts = [self._propose(request) for request in requests]
        if self.clock and any(request.max_tokens for request in requests):
            # The token below the threshold has been computed, too.
            asked = zip(requests, drafts, strict=True)
            forwards = max(min(len(draft.tokens) + 1, request.max_tokens) for request, draft in asked)
            self.clock.spend(forwards * self.step_s + (0.0 if self.forwards else self.setup_s))
            self.forwards += forwards
        return drafts

    def _propose(self, request: DraftRequest) -> DraftTokens:
        acceptance, tokens = 1.0, []
        text = self.texts[request.row]
        for index in range(len(request.prefix), min(len(text), len(request.prefix) + request.max_tokens)):
            acceptance *= request.acceptance_prob(self.claim)
            if acceptance < request.draft_threshold:
                break
            tokens.append(text[index] if self.is_correct(request.row, index) else text[index] ^ 1)
        return DraftTokens(tuple(tokens), (self.claim,) * len(tokens))


def correct_with_probability(probability: float) -> Callable[[int, int], bool]:
    """Make guesses that are correct at a random share of all indices, always the same ones."""
    return lambda row, index: bool(np.random.default_rng((0, row, index)).random() < probability)

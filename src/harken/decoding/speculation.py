"""Speculative decoding: propose draft tokens, have them verified in one forward pass, and stop if that does not pay.

A `SpeculativeDecoder` lives as long as a model and holds the statistics of drafting. A `DraftContext` has windows that
are decoded together, and opens a `DraftSession` for each decode of them, which `harken.decoding.generate.generate` asks
for drafts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import cast

from harken.contract import Features, JoiningBackend
from harken.decoding.candidate_generator import (
    Assistant,
    AssistedCandidateGenerator,
    CandidateGenerator,
    Draft,
    HypothesisLookup,
    PromptLookup,
    common_prefix_length,
)
from harken.decoding.draft_controller import DraftController
from harken.decoding.logit_rules import LogitRules
from harken.decoding.types import DecodeStats, Window

MAX_DRAFT_TOKENS = 15
"""Most tokens that are drafted before they are verified.

One fewer than the ONNX backend reads in a pass with the same result as one by one.
"""
NEAR_TIE = 1e-3
"""Margin between the best two tokens, in log-probability, below which rounding may swap them."""
PRIOR_TOKENS_PER_SECOND = 2.0


class SpeculativeDecoder:
    """The sources of drafts of a model, and what was measured of them so far.

    Parameters
    ----------
    clock : callable
        Returns seconds; measures whether drafting pays.
    assistant : Assistant or None
        A smaller model that drafts.
    ngram : bool
        Whether to draft by looking n-grams up in earlier text.
    """

    def __init__(
        self, clock: Callable[[], float], *, assistant: Assistant | None = None, ngram: bool = False
    ) -> None:
        self.assistant, self.ngram = assistant, ngram
        # Apart, since samples are harder to predict and several are drawn at a time.
        self.greedy, self.sampling = DraftController(clock), DraftController(clock)

    @property
    def detail(self) -> str:
        """Description of the source of drafts, for people."""
        if self.assistant is None:
            return "n-grams of the text so far and the prompt"
        dims, shared = self.assistant.backend.dims, self.assistant.shares_encoder
        encoder = "the model's encoder" if shared else "an encoder of its own"
        layers = f"{dims.n_text_layer} layer{'' if dims.n_text_layer == 1 else 's'}"
        return f"a decoder of {layers}, {dims.n_text_state} wide, with {encoder}"


@dataclass(eq=False)
class DraftContext:
    """Windows to draft for; an assistant encodes them when it is first needed.

    Parameters
    ----------
    speculative_decoder : SpeculativeDecoder
    encode : callable
        Encodes the windows for an assistant.
    window_s : float
        Length of a window in seconds; 0 is unknown.
    encode_s : float
        Seconds that the main model took to encode them, from which the time of an assistant is estimated.
    """

    speculative_decoder: SpeculativeDecoder
    encode: Callable[[Assistant], Features]
    window_s: float = 0.0
    encode_s: float = 0.0

    @classmethod
    def join(cls, contexts: Sequence[DraftContext]) -> DraftContext:
        """Join windows whose features the backends of model and assistant can join."""
        if len(contexts) == 1:
            return contexts[0]

        def encode(assistant: Assistant) -> Features:
            backend = cast(JoiningBackend, assistant.backend)
            return backend.join_features([context.assistant_features for context in contexts])

        return cls(
            contexts[0].speculative_decoder,
            encode,
            window_s=fmean(context.window_s for context in contexts),
            encode_s=sum(context.encode_s for context in contexts),
        )

    @property
    def has_source(self) -> bool:
        """True if there are drafts for every window, not only for those whose text is known."""
        return bool(self.speculative_decoder.assistant or self.speculative_decoder.ngram)

    @cached_property
    def assistant_features(self) -> Features:
        """Encoder output of the assistant."""
        assert self.speculative_decoder.assistant, "there is no assistant to encode for"
        return self.encode(self.speculative_decoder.assistant)

    def open_draft_session(
        self, row_windows: Sequence[Window], logit_rules: LogitRules, *, sampling: bool = False
    ) -> DraftSession | None:
        """Open drafting for the rows of one decode; return None if there is nothing to draft from.

        Parameters
        ----------
        row_windows : sequence of Window
            That of each row.
        logit_rules : LogitRules
        sampling : bool
            Whether tokens are sampled, rather than picked greedily.
        """
        decoder = self.speculative_decoder
        controller = decoder.sampling if sampling else decoder.greedy
        prompts = [window.prompt for window in row_windows]
        generators: list[CandidateGenerator] = []
        if any(window.draft_tokens for window in row_windows):
            lookup = HypothesisLookup(
                [window.draft_tokens for window in row_windows],
                logit_rules,
                controller.previous_hypothesis,
            )
            generators.append(lookup)
        if decoder.ngram:
            generators.append(PromptLookup(prompts, logit_rules, controller.ngram))
        if decoder.assistant:
            assisted = AssistedCandidateGenerator(
                decoder.assistant.backend,
                lambda: self.assistant_features,
                [window.window_index for window in row_windows],
                prompts,
                logit_rules,
                controller.assistant,
            )
            generators.append(assisted)
        if not generators:
            return None
        setup_s = self.encode_s * decoder.assistant.setup_ratio if decoder.assistant else 0.0
        return DraftSession(controller, generators, self.window_s, setup_s)


@dataclass(slots=True, eq=False)
class DraftSession:
    """Drafting for the rows of one decode.

    Parameters
    ----------
    controller : DraftController
    generators : list
        In order of priority: each drafts for the rows for which those before it have proposed nothing.
    window_s : float
        Length of a window; 0 is unknown.
    setup_s : float
        Estimate of the seconds that an assistant takes before it can draft for the windows.

    Attributes
    ----------
    plain_steps : int
        Number of steps before there may be a draft, if `propose` has returned none.
    """

    controller: DraftController
    generators: list[CandidateGenerator]
    window_s: float = 0.0
    setup_s: float = 0.0
    plain_steps: int = field(default=1, init=False)
    _counts: Counter[str] = field(default_factory=Counter)
    _near_ties: list[float] = field(default_factory=list)
    _row_drafts: dict[int, tuple[Draft, CandidateGenerator]] = field(default_factory=dict)
    _draft_s: float = 0.0
    _total_draft_s: float = 0.0
    _verify_start_s: float | None = None
    _set_up: bool = False
    _tokens_expected: float = 0.0

    def __post_init__(self) -> None:
        self._tokens_expected = self.window_s * self.controller.speech.calibration(PRIOR_TOKENS_PER_SECOND)
        self.controller.speech.add(self.window_s, 0.0)

    @property
    def stats(self) -> DecodeStats:
        """Statistics of drafting in this decode so far."""
        return DecodeStats(**self._counts, near_ties=tuple(self._near_ties), draft_s=self._total_draft_s)

    def propose(
        self,
        prefixes: Mapping[int, Sequence[int]],
        max_tokens: Mapping[int, int],
        *,
        behind_prompt: bool = False,
    ) -> dict[int, tuple[int, ...]]:
        """Return draft tokens by row; rows without a draft are missing.

        Parameters
        ----------
        prefixes : mapping of int to sequence of int
            Tokens picked so far, for every unfinished row.
        max_tokens : mapping of int to int
            Most tokens to draft for each.
        behind_prompt : bool
            Whether the model reads its prompt in the same pass, which then is no step.
        """
        start_s = self.controller.clock()
        self._row_drafts = {}
        may_draft = self.controller.may_draft()
        generators = self._usable_generators(len(prefixes)) if may_draft else []
        none_pays = may_draft and not generators
        self.plain_steps = sys.maxsize if none_pays else self.controller.plain_steps
        if generators:
            self._request_drafts(generators, prefixes, max_tokens)
        elif not behind_prompt:
            self._counts["skipped_steps"] += 1
        end_s = self.controller.clock()
        self._verify_start_s = None if behind_prompt else end_s
        self._draft_s += end_s - start_s
        self._total_draft_s += end_s - start_s
        return {row: tuple(draft.tokens) for row, (draft, _) in self._row_drafts.items()}

    def record_accepted(
        self, new_tokens: Mapping[int, Sequence[int]], margins: Sequence[float], n_steps: int = 1
    ) -> None:
        """Record how many tokens of the last drafts were accepted, and what that step, or some without drafts, cost.

        Parameters
        ----------
        new_tokens : mapping of int to sequence of int
            Tokens picked in the step, for every row that took part.
        margins : sequence of float
            Margin to the second best token, in log-probability, of each token that was verified together with others.
        n_steps : int
            Number of steps.
        """
        if self._verify_start_s is None and not self._row_drafts:
            return  # a pass over prompts alone
        self._counts["skipped_steps"] += n_steps - 1
        width = 1
        for row, (draft, generator) in self._row_drafts.items():
            width = max(width, 1 + len(draft.tokens))
            accepted = common_prefix_length(draft.tokens, new_tokens[row])
            tested = min(accepted + 1, len(new_tokens[row]), len(draft.tokens))
            generator.record_accepted(row, sum(draft.confidences[:tested]), accepted)
            self._counts["drafted"] += len(draft.tokens)
            self._counts["accepted"] += accepted
        n_new_tokens = sum([len(tokens) for tokens in new_tokens.values()])
        self.controller.speech.accepted += n_new_tokens / len(new_tokens)
        self._tokens_expected -= n_new_tokens / len(new_tokens)
        self._near_ties += [margin for margin in margins if margin < NEAR_TIE]
        # The time of a prompt is no cost of its draft: what such a step takes counts.
        verify_s = (
            self.controller.verify_s(len(new_tokens) * width)
            if self._verify_start_s is None
            else self.controller.clock() - self._verify_start_s
        )
        for _ in range(n_steps):
            self.controller.record_step(
                n_rows=len(new_tokens),
                width=width,
                n_new_tokens=n_new_tokens / n_steps,
                verify_s=verify_s / n_steps,
                draft_s=self._draft_s / n_steps,
            )
        self._draft_s = 0.0

    def _usable_generators(self, n_rows: int) -> list[CandidateGenerator]:
        """Return the generators without an assistant that would have to encode and will not pay."""
        may_set_up = self._set_up or self.controller.may_set_up(
            setup_s=self.setup_s, n_rows=n_rows, n_tokens=self._tokens_expected
        )
        return [generator for generator in self.generators if may_set_up or not generator.needs_setup]

    def _request_drafts(
        self,
        generators: Sequence[CandidateGenerator],
        prefixes: Mapping[int, Sequence[int]],
        max_tokens: Mapping[int, int],
    ) -> None:
        draft_threshold = self.controller.draft_threshold(len(prefixes))
        verify_threshold = self.controller.verify_threshold(len(prefixes))
        for generator in generators:
            drafts = [
                Draft(
                    row=row,
                    prefix=prefix,
                    max_tokens=0 if row in self._row_drafts else min(MAX_DRAFT_TOKENS, max_tokens[row]),
                    calibration=generator.calibration(row),
                    draft_threshold=draft_threshold,
                    verify_threshold=verify_threshold,
                )
                for row, prefix in prefixes.items()
            ]
            start_s, forwards_before = self.controller.clock(), generator.forwards
            generator.propose(drafts)
            forwards = generator.forwards - forwards_before
            if forwards:
                self._record_draft_cost(forwards, self.controller.clock() - start_s, len(prefixes))
            for draft in drafts:
                if draft.tokens:
                    self._row_drafts[draft.row] = draft, generator
                elif draft.max_tokens:
                    generator.counter.decay()

    def _record_draft_cost(self, forwards: int, seconds: float, n_rows: int) -> None:
        """Record the cost of an assistant; the first time, it includes encoding and reading the prompt."""
        self._counts["draft_forwards"] += forwards
        if self._set_up:
            self.controller.record_draft(forwards, seconds, n_rows)
        else:
            self.controller.record_setup(seconds)
            self._set_up = True

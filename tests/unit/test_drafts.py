"""A model that drafts: what it reads, what it proposes, and when it leaves off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fakes.backends import EOT, N_VOCAB, FakeFeatures, ScriptedBackend, ScriptedBackendSession, logits_of_texts
from fakes.drafts import unrestricted_rules
from harken.contract import Features, Floats
from harken.decoding import Assistant, make_logit_rules
from harken.decoding.candidate_generator import AssistedCandidateGenerator, DraftRequest
from harken.decoding.logit_rules import LogitRules
from tiny_models import DIMS, TOKENIZER

TEXTS = [(1, 2, 3, 4, 5, 6, EOT), (6, 5, EOT), (2, 2, 2, 2, 2, 2, EOT)]
PROMPTS = [(0,), (0,), (0,)]


def drafting(
    texts: Sequence[Sequence[int]] = TEXTS,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    rules: LogitRules | None = None,
    *,
    part: Sequence[int] | None = None,
) -> tuple[AssistedCandidateGenerator, ScriptedBackend]:
    vocabulary = None if part is None else np.array(part)
    backend = ScriptedBackend(logits_of_texts(texts, len(prompts[0])), 40, vocabulary=vocabulary)
    rows = range(len(prompts))
    return AssistedCandidateGenerator(
        backend, lambda: FakeFeatures(len(rows)), rows, prompts, rules or unrestricted_rules()
    ), backend


def ask(row: int, prefix: Sequence[int] = (), limit: int = 3, **more: float) -> DraftRequest:
    return DraftRequest(row=row, prefix=list(prefix), max_tokens=limit, **more)


def read(backend: ScriptedBackend) -> list[list[tuple[int, ...]]]:
    (session,) = backend.sessions
    return session.read


def tokens(draft: AssistedCandidateGenerator, *asks: DraftRequest) -> list[tuple[int, ...]]:
    return [its.tokens for its in draft.propose(asks)]


def test_it_reads_each_token_once() -> None:
    draft, backend = drafting(TEXTS[:1], [(0, 0, 0)])
    assert tokens(draft, ask(0, [1])) == [(2, 3, 4)]
    assert read(backend) == [[(0, 0, 0, 1)], [(2,)], [(3,)]]
    # All were right, and one more has come out of verifying: what it has proposed last it has not read yet.
    assert tokens(draft, ask(0, [1, 2, 3, 4, 5], limit=1)) == [(6,)]
    assert read(backend)[3:] == [[(4, 5)]]
    assert draft.forwards == 4


def test_it_forgets_what_was_not_right_and_nothing_else() -> None:
    draft, backend = drafting(TEXTS[:1])
    draft.propose([ask(0, [1])])
    assert tokens(draft, ask(0, [1, 2, 6], limit=2)) == [(4, 5)]
    assert read(backend)[3:] == [[(6,)], [(4,)]]
    (session,) = backend.sessions
    assert session.rows[0][1] == (0, 1, 2, 6, 4)


def test_it_reads_the_last_token_anew_where_it_knows_all() -> None:
    """It drafted two and was told one: the first of them is where to go on from, and has been read."""
    draft, backend = drafting(TEXTS[:1])
    assert tokens(draft, ask(0, [1], limit=2)) == [(2, 3)]
    assert tokens(draft, ask(0, [1, 2], limit=1)) == [(3,)]
    assert read(backend)[2:] == [[(2,)]]


def test_rows_go_on_at_their_own_pace() -> None:
    draft, backend = drafting()
    assert tokens(draft, ask(0, [1], 3), ask(1, [6], 5), ask(2, [2], 1)) == [(2, 3, 4), (5, EOT), (2,)]
    assert read(backend) == [[(0, 1), (0, 6), (0, 2)], [(2,), (5,), ()], [(3,), (), ()]]
    assert draft.forwards == 3


def test_a_row_that_has_ended_is_dropped() -> None:
    draft, backend = drafting()
    draft.propose([ask(0, [1], 2), ask(1, [6], 2), ask(2, [2], 2)])
    assert tokens(draft, ask(2, [2, 2], 2)) == [(2, 2)]
    (session,) = backend.sessions
    assert len(session.rows) == 1
    assert read(backend)[2:] == [[(2,)], [(2,)]]


def test_a_row_that_is_not_asked_for_waits_and_catches_up() -> None:
    draft, backend = drafting()
    assert tokens(draft, ask(0, [1], 1), ask(1, [6], 0)) == [(2,), ()]
    assert tokens(draft, ask(0, [1, 2], 0), ask(1, [6], 0)) == [(), ()]
    assert tokens(draft, ask(0, [1, 2, 3], 1), ask(1, [6, 5], 2)) == [(4,), (EOT,)]
    assert read(backend) == [[(0, 1), ()], [(2, 3), (0, 6, 5)]]


def test_a_row_that_waits_forgets_too() -> None:
    draft, backend = drafting(TEXTS[:2], PROMPTS[:2])
    draft.propose([ask(0, [1], 3), ask(1, [6], 3)])
    draft.propose([ask(0, [1, 5], 0), ask(1, [6, 5], 1)])
    assert tokens(draft, ask(0, [1, 5, 5], 1), ask(1, [6, 5, 5], 0)) == [(4,), ()]
    (session,) = backend.sessions
    assert session.rows[0][1] == (0, 1, 5, 5)


def test_it_stands_still_until_it_is_asked() -> None:
    heard: list[int] = []

    def features() -> FakeFeatures:
        heard.append(1)
        return FakeFeatures(1)

    backend = ScriptedBackend(logits_of_texts(TEXTS), 40)
    draft = AssistedCandidateGenerator(backend, features, [0], [(0,)], unrestricted_rules())
    assert tokens(draft, ask(0, [1], 0)) == [()]
    assert (heard, backend.sessions, draft.forwards) == ([], [], 0)
    draft.propose([ask(0, [1], 1)])
    draft.propose([ask(0, [1, 2], 1)])
    assert heard == [1]


def test_it_stops_at_the_end_of_the_text_and_at_the_limit() -> None:
    draft, _ = drafting()
    assert tokens(draft, ask(0, [1], 99), ask(1, [6], 99), ask(2, [2], 2)) == [
        (2, 3, 4, 5, 6, EOT),
        (5, EOT),
        (2, 2),
    ]


def test_it_stops_where_it_is_not_sure_enough() -> None:
    draft, backend = drafting(TEXTS[:1])
    (proposal,) = draft.propose([ask(0, [1], 9, calibration=0.8, draft_threshold=0.6, verify_threshold=0.55)])
    assert proposal.tokens == (2, 3)
    assert proposal.confidences == pytest.approx([1, 1], abs=1e-3)
    assert len(read(backend)) == 3, "it has to look at a token to see that it is not worth it"
    assert tokens(draft, ask(0, [1], 9, calibration=0.5, draft_threshold=0.6, verify_threshold=0.55)) == [()]


def test_what_has_been_thought_of_is_proposed_though_going_on_would_not_pay() -> None:
    draft, backend = drafting(TEXTS[:1])
    (proposal,) = draft.propose([ask(0, [1], 9, calibration=0.8, draft_threshold=0.6, verify_threshold=0.1)])
    assert proposal.tokens == (2, 3, 4)
    assert len(read(backend)) == 3


def test_it_claims_what_the_rules_leave() -> None:
    draft, _ = drafting(TEXTS[:1], rules=unrestricted_rules(suppressed=[2, 3]))
    (proposal,) = draft.propose([ask(0, [1], 3)])
    assert not {2, 3} & set(proposal.tokens)
    assert proposal.confidences[0] == pytest.approx(1 / (N_VOCAB - 2), rel=0.01)


@pytest.mark.parametrize("suppressed", [[1], [1, 2, EOT]])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_with_a_part_of_the_vocabulary_it_proposes_that_or_nothing(suppressed: list[int], floor: float) -> None:
    draft, _ = drafting(TEXTS, rules=unrestricted_rules(suppressed), part=[1, 2, EOT])
    allowed = {1, 2, EOT} - set(suppressed)
    for proposed in tokens(
        draft,
        ask(0, [1], 5, draft_threshold=floor),
        ask(1, [6], 5, draft_threshold=floor),
        ask(2, [2], 5, draft_threshold=floor),
    ):
        assert set(proposed) <= allowed


def test_rules_are_those_of_the_prefix_as_it_grows() -> None:
    """With timestamps: text follows the first one, no third one stands beside two, and none goes back."""
    at = [TOKENIZER.timestamp_begin + step for step in (10, 20, 5)]
    rules = make_logit_rules(TOKENIZER, timestamps=True, forced_prefix=tuple(b"hi"))
    says = [[at[0], *b"ho", at[1], at[1], at[1], at[2]]]
    prompt = TOKENIZER.sot_sequence("en")
    backend = ScriptedBackend(logits_of_texts(says, len(prompt), DIMS.n_vocab), 40)
    draft = AssistedCandidateGenerator(backend, lambda: FakeFeatures(1), [0], [prompt], rules)
    (proposed,) = tokens(draft, ask(0, [], 8))
    assert proposed[:5] == (at[0], *b"hi", at[1], at[1])
    grown: list[int] = []
    for token in proposed:
        assert not any(start <= token < stop for start, stop in rules.banned(grown))
        assert token not in rules.suppressed
        grown.append(token)


def test_an_assistant_listens_by_itself_or_adopts() -> None:
    class Ear:
        def encode(self, mel: Floats) -> str:
            return f"encoded {mel.shape}"

        def adopt(self, features: Features) -> str:
            return f"adopted {features}"

    mel = np.zeros((1, 2, 4), np.float32)
    own = Assistant(backend=Ear(), shares_encoder=False)
    assert own.encode(mel, FakeFeatures(1)) == "encoded (1, 2, 4)"
    assert replace(own, shares_encoder=True).encode(mel, FakeFeatures(1)) == "adopted FakeFeatures(n_windows=1)"


def test_rows_that_share_a_window_share_no_state() -> None:
    backend = ScriptedBackend(logits_of_texts(TEXTS), 40)
    draft = AssistedCandidateGenerator(
        backend, lambda: FakeFeatures(1), [0, 0], [(0,), (0,)], unrestricted_rules()
    )
    assert tokens(draft, ask(0, [1], 2), ask(1, [1, 2, 3], 2)) == [(2, 3), (4, 5)]
    session: ScriptedBackendSession = backend.sessions[0]
    assert [window for window, _ in session.rows] == [0, 0]

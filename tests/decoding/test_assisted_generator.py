"""Tests of `AssistedCandidateGenerator`: the tokens it reads, those it drafts, and where it stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fakes.backends import EOT, FakeFeatures, ScriptedBackend, logits_of_texts
from fakes.drafts import unrestricted_rules
from harken.contract import Features, Floats, SparsePositions
from harken.decoding import Assistant, make_logit_rules
from harken.decoding.candidate_generator import AssistedCandidateGenerator, DraftRequest
from harken.decoding.logit_rules import LogitRules
from tiny_models import DIMS, TOKENIZER

TEXTS = [(1, 2, 3, 4, 5, 6, EOT), (6, 5, EOT), (2, 2, 2, 2, 2, 2, EOT)]
PROMPTS = [(0,), (0,), (0,)]


def make_generator(
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


def request(row: int, prefix: Sequence[int] = (), limit: int = 3, **more: float) -> DraftRequest:
    return DraftRequest(row=row, prefix=list(prefix), max_tokens=limit, **more)


def read(backend: ScriptedBackend) -> list[list[tuple[int, ...]]]:
    (session,) = backend.sessions
    return session.read


def propose(generator: AssistedCandidateGenerator, *requests: DraftRequest) -> list[tuple[int, ...]]:
    return [proposal.tokens for proposal in generator.propose(requests)]


def test_assistant_reads_each_token_once_and_rewinds_only_rejected_ones() -> None:
    generator, backend = make_generator(TEXTS[:1], [(0, 0, 0)])
    assert propose(generator, request(0, [1], limit=2)) == [(2, 3)]
    assert read(backend) == [[(0, 0, 0, 1)], [(2,)]]
    # All were accepted, and one more came from verification; the last token of the draft was never read.
    assert propose(generator, request(0, [1, 2, 3, 4], limit=2)) == [(5, 6)]
    assert read(backend)[2:] == [[(3, 4)], [(5,)]]
    # The 5, which was read, was wrong.
    generator.propose([request(0, [1, 2, 3, 4, 6], limit=1)])
    assert read(backend)[4:] == [[(6,)]]
    (session,) = backend.sessions
    assert session.rows[0][1] == (0, 0, 0, 1, 2, 3, 4, 6)
    assert generator.forwards == 5


def test_finished_row_is_dropped() -> None:
    generator, backend = make_generator()
    generator.propose([request(0, [1], 2), request(1, [6], 2), request(2, [2], 2)])
    assert propose(generator, request(2, [2, 2], 2)) == [(2, 2)]
    (session,) = backend.sessions
    assert len(session.rows) == 1
    assert read(backend)[2:] == [[(2,)], [(2,)]]


def test_assistant_does_not_encode_before_the_first_request() -> None:
    encoded: list[int] = []

    def features() -> FakeFeatures:
        encoded.append(1)
        return FakeFeatures(1)

    backend = ScriptedBackend(logits_of_texts(TEXTS), 40)
    generator = AssistedCandidateGenerator(backend, features, [0], [(0,)], unrestricted_rules())
    assert propose(generator, request(0, [1], 0)) == [()]
    assert (encoded, backend.sessions, generator.forwards) == ([], [], 0)
    generator.propose([request(0, [1], 1)])
    generator.propose([request(0, [1, 2], 1)])
    assert encoded == [1]


def test_draft_ends_at_end_of_text_and_at_limit() -> None:
    generator, _ = make_generator()
    assert propose(generator, request(0, [1], 99), request(1, [6], 99), request(2, [2], 2)) == [
        (2, 3, 4, 5, 6, EOT),
        (5, EOT),
        (2, 2),
    ]


@pytest.mark.parametrize("suppressed", [[1], [1, 2, EOT]])
@pytest.mark.parametrize("draft_threshold", [0.0, 0.1])
def test_assistant_with_vocab_subset_proposes_only_its_tokens(
    suppressed: list[int], draft_threshold: float
) -> None:
    generator, _ = make_generator(TEXTS, rules=unrestricted_rules(suppressed), part=[1, 2, EOT])
    allowed = {1, 2, EOT} - set(suppressed)
    for proposed in propose(
        generator,
        request(0, [1], 5, draft_threshold=draft_threshold),
        request(1, [6], 5, draft_threshold=draft_threshold),
        request(2, [2], 5, draft_threshold=draft_threshold),
    ):
        assert set(proposed) <= allowed


def test_logit_rules_follow_the_growing_prefix() -> None:
    """With timestamps: text follows the first one, there are no three in a row, and none goes back."""
    stamps = [TOKENIZER.timestamp_begin + step for step in (10, 20, 5)]
    rules = make_logit_rules(TOKENIZER, timestamps=True, forced_prefix=tuple(b"hi"))
    texts = [[stamps[0], *b"ho", stamps[1], stamps[1], stamps[1], stamps[2]]]
    prompt = TOKENIZER.sot_sequence("en")
    backend = ScriptedBackend(logits_of_texts(texts, len(prompt), DIMS.n_vocab), 40)
    generator = AssistedCandidateGenerator(backend, lambda: FakeFeatures(1), [0], [prompt], rules)
    (proposed,) = propose(generator, request(0, [], 8))
    assert proposed[:5] == (stamps[0], *b"hi", stamps[1], stamps[1])
    prefix: list[int] = []
    for token in proposed:
        assert not any(start <= token < stop for start, stop in rules.banned(prefix))
        assert token not in rules.suppressed
        prefix.append(token)


def test_assistant_encodes_unless_it_shares_the_encoder() -> None:
    class Encoder:
        def encode(self, mel: Floats, positions: SparsePositions | None = None) -> str:
            return f"encoded {mel.shape}"

        def reuse_encoder_output(self, features: Features) -> str:
            return f"adopted {features}"

    mel = np.zeros((1, 2, 4), np.float32)
    own = Assistant(backend=Encoder(), shares_encoder=False)
    assert own.encode(mel, FakeFeatures(1)) == "encoded (1, 2, 4)"
    assert replace(own, shares_encoder=True).encode(mel, FakeFeatures(1)) == "adopted FakeFeatures(n_windows=1)"

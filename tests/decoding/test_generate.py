"""Tests of the token loop: the calls that it makes on a session, and what ends a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fakes.backends import EOT, FakeFeatures, ScriptedBackend, ScriptedBackendSession, logits_of_texts
from fakes.drafts import FakeCandidateGenerator, FakeDraftContext, unrestricted_rules
from harken.backends.host_logits import HostLogits
from harken.contract import Floats
from harken.decoding.generate import EotOrLimit, Row, Stop, generate, pick_best, prefill

TEXTS = [(1, 2, 3, 4, EOT), (5, EOT), (6, 6, 6, EOT)]
SOT, NO_SPEECH = 0, 3


class RecordingSession(ScriptedBackendSession):
    """A table session that records its calls."""

    def __init__(self, texts: Sequence[Sequence[int]] = TEXTS) -> None:
        super().__init__(ScriptedBackend(logits_of_texts(texts), 40), range(len(texts)), 40)
        self.calls: list[tuple[str, object]] = []

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        self.calls.append(("extend", last_n))
        return super().extend(tokens, last_n)

    def rewind(self, lengths: Sequence[int]) -> None:
        self.calls.append(("rewind", tuple(lengths)))
        super().rewind(lengths)

    def reorder(self, rows: Sequence[int]) -> None:
        self.calls.append(("reorder", tuple(rows)))
        super().reorder(rows)

    def attention(self, row: int) -> Floats:
        self.calls.append(("attention", row))
        return super().attention(row)


def make_rows(limit: int = 30, drafts: Sequence[Sequence[int]] = ((), (), ())) -> list[Row]:
    return [Row(1, limit, EotOrLimit(EOT), draft=tuple(draft)) for draft in drafts]


def prefilled(session: RecordingSession, rows: Sequence[Row]) -> HostLogits:
    logits, _ = prefill(
        session, [[SOT]] * len(rows), [row.draft for row in rows], NO_SPEECH, [None] * len(rows)
    )
    session.calls.clear()
    return logits


def test_drafted_tokens_are_read_together() -> None:
    session, rows = RecordingSession(TEXTS[:1]), make_rows(drafts=[()])
    draft_session = FakeDraftContext(lambda n_rows: [FakeCandidateGenerator(TEXTS)]).open_draft_session(
        [0], [[SOT]], [[]], unrestricted_rules()
    )
    logits = prefilled(session, rows)
    assert generate(session, rows, logits, unrestricted_rules(), pick_best, draft_session=draft_session) == 1
    assert session.calls == [("extend", 5), ("rewind", (5,))]


@pytest.mark.parametrize(("limit", "reason"), [(4, "limit"), (5, "eot"), (6, "eot")])
def test_row_ends_with_eot_or_at_its_limit(limit: int, reason: str) -> None:
    session, rows = RecordingSession(TEXTS[:1]), make_rows(limit, [()])
    generate(session, rows, prefilled(session, rows), unrestricted_rules(), pick_best)
    assert rows[0].stop is not None
    assert rows[0].stop.reason == reason
    assert rows[0].tokens == [*TEXTS[0][:limit]]
    assert rows[0].hypothesis(EOT).tokens == TEXTS[0][: min(limit, 4)]


@pytest.mark.parametrize("draft", [(), (1, 2, 3)])
def test_stopping_criterion_gets_the_attention_and_may_drop_tokens(draft: tuple[int, ...]) -> None:
    lengths: list[int] = []

    def stop_before_4(row: Row, token: int, attention: Floats | None) -> Stop | None:
        assert attention is not None
        lengths.append(attention.shape[1])
        return Stop("loop", include_token=False, drop_last=2) if token == 4 else None

    session, row = RecordingSession(TEXTS[:1]), Row(1, 30, stop_before_4, draft=draft)
    generate(session, [row], prefilled(session, [row]), unrestricted_rules(), pick_best, stop_by_attention=True)
    assert row.tokens == [1]
    assert len(row.logprobs) == 1
    assert lengths == ([4] * 4 if draft else [1, 2, 3, 4])
    n_steps = 1 if draft else 4
    assert [name for name, _ in session.calls].count("attention") == n_steps


def test_prefill_reads_no_speech_prob_behind_sot_and_logits_behind_the_draft() -> None:
    def script(window: int, seen: tuple[int, ...]) -> Floats:
        logits = np.zeros(8, np.float32)
        logits[NO_SPEECH] = 10 * window + len(seen)
        return logits

    session = ScriptedBackend(script, 40).open_session(FakeFeatures(3), range(3), 40)
    prompts = [(7, SOT, 1), (SOT, 1, 2), (7, 7, SOT)]
    logits, probabilities = prefill(session, prompts, [(4, 5), (), (6,)], NO_SPEECH, [1, None, 0])
    n_read = [3, 4, 5, 3, 3, 4]
    windows = [0, 0, 0, 1, 2, 2]
    assert logits.values[:, NO_SPEECH].tolist() == [10 * w + n for w, n in zip(windows, n_read, strict=True)]
    expected = [np.exp(logit) / (np.exp(logit) + 7) for logit in (2.0, 23.0)]
    assert probabilities == pytest.approx(expected, rel=1e-5)

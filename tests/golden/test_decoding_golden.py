"""Logit rules and beam search against those of openai-whisper (see record_whisper.py)."""

import numpy as np
import pytest
from goldens import read_json

from fakes.backends import EOT, FakeSession
from fakes.drafts import unrestricted_rules
from harken.backends.host_logits import HostLogits
from harken.decoding import Beam, make_logit_rules
from harken.decoding.beam import beam_search
from harken.decoding.generate import Row, WindowEnd
from tiny_models import TOKENIZER

GOLDEN = read_json("decoding")
FILTERS = (
    {"suppress_blank": True, "timestamps": True, "last_initial": 50},
    {"suppress_blank": False, "timestamps": True, "last_initial": None},
    {"suppress_blank": True, "timestamps": True, "last_initial": 3},
    {"suppress_blank": True, "timestamps": False, "last_initial": None},
)

BEAMS = ((1, 2.0), (2, 4.0), (5, 1.0), (3, 2.0), (4, 0.5), (5, 1.5))
BEAM_SEEDS = 6
BEAM_LIMIT = 8


def filter_logits(seed, step):
    """Draw logits over the tiny vocabulary; in about half of them the timestamps together outweigh the text."""
    rng = np.random.default_rng((seed, step))
    logits = 8 * rng.random(TOKENIZER.n_vocab, np.float32)
    logits[TOKENIZER.timestamp_begin :] -= 12 * rng.random(dtype=np.float32)
    return logits


def beam_logits(seed, prefix):
    """Draw logits over eight ids after a prefix, the last of them the end of text; no text is empty."""
    logits = 5 * np.random.default_rng((seed, *prefix)).random(EOT + 1, np.float32)
    logits[EOT] -= 0 if prefix else np.inf
    return logits


@pytest.mark.parametrize("case", GOLDEN["filters"], ids=lambda case: case["seed"])
def test_rules_allow_the_tokens_that_the_filters_of_whisper_allow(case):
    rules = rules_of(**FILTERS[case["seed"] % len(FILTERS)])
    for step, allowed in enumerate(case["allowed"]):
        logits = HostLogits(filter_logits(case["seed"], step)[None])
        rules.apply(logits, [case["tokens"][:step]])
        expected = np.concatenate([np.arange(start, stop) for start, stop in allowed])
        np.testing.assert_array_equal(np.flatnonzero(np.isfinite(logits.values[0])), expected)


@pytest.mark.parametrize("case", GOLDEN["beams"], ids=lambda case: "{width}-{patience}-{seed}".format(**case))
def test_beam_search_finds_the_hypotheses_of_whisper(case):
    session = FakeSession(lambda _, prefix: beam_logits(case["seed"], prefix), [0])
    beam = Beam(width=case["width"], patience=case["patience"])
    row = Row((), BEAM_LIMIT, WindowEnd(EOT))
    (found,), _ = beam_search(session, session.logits, unrestricted_rules(), beam, [row], lambda step: None)
    assert sorted(hypothesis.tokens for hypothesis in found) == sorted(map(tuple, case["texts"]))
    totals = {tuple(text): total for text, total in zip(case["texts"], case["totals"], strict=True)}
    for hypothesis in found:
        assert hypothesis.sum_logprob == pytest.approx(totals[hypothesis.tokens], abs=1e-4)
    for penalty, index in case["best"].items():
        length_penalty = None if penalty == "None" else float(penalty)
        best = max(found, key=lambda hypothesis: hypothesis.score(length_penalty))
        assert best.tokens == tuple(case["texts"][index])


def rules_of(*, suppress_blank, timestamps, last_initial):
    return make_logit_rules(
        TOKENIZER,
        timestamps=timestamps,
        suppress_blank=suppress_blank,
        max_initial_timestamp_s=None if last_initial is None else last_initial / 50,
    )

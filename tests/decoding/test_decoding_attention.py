"""The attention captured in decoding is that of reading the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.contract import Backend
from harken.decoding import Beam, Greedy, LogitRules, Sample, Strategy, Window, decode, make_logit_rules
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

EOT = TOKENIZER.eot
TEXT = [*b" aeinorst,."]
STRATEGIES = [
    Greedy(),
    Beam(width=3),
    Beam(width=2, patience=2.0, length_penalty=0.6),
    Sample(temperature=0.8, best_of=3),
]


def rules_over(kept: list[int]) -> LogitRules:
    suppressed = sorted(set(range(DIMS.n_vocab)) - set(kept))
    return make_logit_rules(TOKENIZER, timestamps=False, suppress_tokens=suppressed)


RULES = {"some end": rules_over([*TEXT, EOT]), "none end": rules_over(TEXT)}


@st.composite
def windows(draw: st.DrawFn) -> Window:
    previous = draw(st.lists(st.sampled_from(TEXT), max_size=12))
    return Window(
        window_index=draw(st.integers(0, N_WINDOWS - 1)),
        prompt=(*previous, *TOKENIZER.sot_sequence("en")),
        seed=(3,),
    )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=3)
@given(batch=st.lists(windows(), min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["numpy", "onnx-fp32"])
def test_attention_is_that_which_picked_each_token(
    open_backend, name: str, rules: str, strategy: Strategy, batch: list[Window]
) -> None:
    backend: Backend = open_backend(name)
    features = backend.encode(make_mel())
    results, _ = decode(
        backend,
        features,
        batch,
        tokenizer=TOKENIZER,
        logit_rules=RULES[rules],
        strategy=strategy,
        attention=True,
    )
    for window, result in zip(batch, results, strict=True):
        hypothesis = result.hypothesis
        assert hypothesis.attention is not None
        session = backend.open_session(features, [window.window_index], DIMS.n_text_ctx, attention=True)
        n_picked = len(hypothesis.logprobs)
        session.extend([[*window.prompt, *hypothesis.tokens][: len(window.prompt) + n_picked - 1]])
        expected = session.attention(0)[:, len(window.prompt) - 1 :]
        assert hypothesis.attention.shape[1] == n_picked
        np.testing.assert_allclose(hypothesis.attention, expected, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_capturing_attention_changes_nothing_else(reference_backend: Backend, strategy: Strategy) -> None:
    features = reference_backend.encode(make_mel())
    batch = [Window(window_index=audio, prompt=TOKENIZER.sot_sequence("en")) for audio in range(N_WINDOWS)]
    plain, captured = (
        decode(
            reference_backend,
            features,
            batch,
            tokenizer=TOKENIZER,
            logit_rules=RULES["some end"],
            strategy=strategy,
            attention=on,
        )
        for on in (False, True)
    )
    assert plain == captured
    assert all(result.hypothesis.attention is None for result in plain[0])

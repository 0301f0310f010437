"""Properties of the hotword bias: like all logit rules, it depends on the prefix alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.backends.host_logits import HostLogits
from harken.contract import Backend
from harken.decoding import Greedy, Window, decode, make_logit_rules
from harken.decoding.logit_rules import make_hotword_bias
from tiny_models import DIMS, TOKENIZER, make_mel

BEGIN = TOKENIZER.timestamp_begin
HOTWORDS = ("arena", "rain", "Tea time", "né")
TEXT = [*b" aeimnrtT", 0xC3, 0xA9]
TIMES = [BEGIN, BEGIN + 25, BEGIN + 100]

prefixes = st.lists(st.sampled_from([*TEXT, *TIMES]), max_size=12)
hotwords = st.lists(st.text("aeinrt é", max_size=8), min_size=1, max_size=4)


@given(all_prefixes=st.lists(prefixes, min_size=1, max_size=5), seed=st.integers(0, 99))
def test_every_position_gets_the_bonuses_of_its_own_prefix(all_prefixes: list[list[int]], seed: int) -> None:
    rules = make_logit_rules(TOKENIZER, timestamps=True, hotwords=HOTWORDS)
    table = np.random.default_rng(seed).standard_normal((len(all_prefixes), TOKENIZER.n_vocab), np.float32)
    together = HostLogits(table.copy())
    rules.apply(together, all_prefixes)
    for row, prefix in enumerate(all_prefixes):
        alone = HostLogits(table[row : row + 1].copy())
        rules.apply(alone, [prefix])
        np.testing.assert_array_equal(together.values[row], alone.values[0])


@given(words=hotwords, prefix=prefixes)
def test_bonuses_lie_between_zero_and_strength(words: list[str], prefix: list[int]) -> None:
    bias = make_hotword_bias(TOKENIZER, words)
    if bias is None:
        assert not "".join(words).split()
        return
    bonuses = bias.bonuses(prefix, range(TOKENIZER.n_vocab))
    assert set(bonuses) <= set(range(256))
    assert all(0 < bonus <= bias.strength for bonus in bonuses.values())


@given(words=hotwords, context=prefixes, upto=st.integers(1, 8))
def test_every_token_of_a_hotword_gets_a_bonus(words: list[str], context: list[int], upto: int) -> None:
    bias = make_hotword_bias(TOKENIZER, words)
    for word in words:
        spelled = TOKENIZER.encode(" " + " ".join(word.split()))
        if bias is None or len(spelled) <= upto:
            continue
        assert bias.bonuses([*context, *spelled[:upto]], [spelled[upto]]) == {spelled[upto]: bias.strength}


@settings(max_examples=5)
@given(audio=st.integers(0, 3), timestamps=st.booleans())
def test_verifying_a_draft_applies_the_bonuses_of_single_steps(
    reference_backend: Backend, audio: int, timestamps: bool
) -> None:
    features = reference_backend.encode(make_mel())
    suppressed = sorted(set(range(TOKENIZER.n_vocab)) - {*TEXT, *TIMES, TOKENIZER.eot})
    rules = make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=suppressed, hotwords=HOTWORDS)
    prompt = TOKENIZER.sot_sequence("en", timestamps=timestamps)
    (result,), _ = decode(
        reference_backend, features, [Window(window_index=audio, prompt=prompt)],
        tokenizer=TOKENIZER, logit_rules=rules, strategy=Greedy(),
    )  # fmt: skip
    tokens = [*result.hypothesis.tokens, TOKENIZER.eot][: len(result.hypothesis.logprobs)]
    drafts: Sequence[Sequence[int]] = [tokens[:i] for i in range(len(tokens))]
    logits = reference_backend.open_session(features, [audio], DIMS.n_text_ctx).extend(
        [[*prompt, *tokens[:-1]]], last_n=len(tokens)
    )
    rules.apply(logits, drafts)
    ids, logprobs = logits.top(1)
    assert ids[:, 0].tolist() == tokens
    np.testing.assert_allclose(logprobs[:, 0], result.hypothesis.logprobs, atol=1e-4)

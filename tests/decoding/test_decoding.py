"""Properties of decoding that hold for any model, windows and prompts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.backends import FakeFeatures, ScriptedBackend, random_logits
from harken.contract import Backend
from harken.decoding import (
    Beam,
    DecodeStats,
    DecodingResult,
    Greedy,
    LogitRules,
    Sample,
    Step,
    Strategy,
    Window,
    decode,
    language_probabilities,
    make_logit_rules,
    make_prompt,
)
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

EOT, BEGIN = TOKENIZER.eot, TOKENIZER.timestamp_begin
TEXT = [*b" aeinorst,.", 0xC3, 0xA9]
TIMES = [BEGIN + step for step in (0, 10, 25, 50, 100, 200, 400, 800, 1200, 1500)]
"""Few tokens and timestamps, so that a random model reaches eot now and then."""
BACKEND = ScriptedBackend(random_logits())
FEATURES = FakeFeatures(N_WINDOWS)


def rules_over(kept: Sequence[int], *, timestamps: bool) -> LogitRules:
    suppressed = sorted(set(range(DIMS.n_vocab)) - set(kept))
    return make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=suppressed)


RULES = {
    True: rules_over([*TEXT, *TIMES, EOT], timestamps=True),
    False: rules_over([*TEXT, EOT], timestamps=False),
}
ENDLESS = rules_over(TEXT, timestamps=False)

STRATEGIES = [
    Greedy(),
    Beam(width=3),
    Beam(width=2, patience=2.0, length_penalty=0.6),
    Sample(temperature=0.8, best_of=3),
]
TOKEN = st.sampled_from(TEXT)
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
few = settings(max_examples=8)


@st.composite
def windows(draw: st.DrawFn, timestamps: bool) -> Window:
    prompt = make_prompt(
        TOKENIZER,
        DIMS.n_text_ctx,
        language=draw(st.sampled_from(["en", "de", "jw"])),
        task=draw(st.sampled_from(["transcribe", "translate"])),
        timestamps=timestamps,
        initial_prompt_tokens=draw(st.lists(TOKEN, max_size=3)),
        previous_tokens=draw(st.lists(TOKEN, max_size=12)),
    )
    return Window(
        window_index=draw(st.integers(0, N_WINDOWS - 1)), prompt=prompt, seed=(draw(st.integers(0, 9)), 7)
    )


@st.composite
def batches(draw: st.DrawFn, most: int = 4) -> tuple[list[Window], LogitRules]:
    timestamps = draw(st.booleans())
    return draw(st.lists(windows(timestamps), min_size=1, max_size=most)), RULES[timestamps]


def run(
    batch: Sequence[Window], rules: LogitRules, strategy: Strategy, **options: object
) -> tuple[list[DecodingResult], DecodeStats]:
    return decode(
        BACKEND, FEATURES, batch, tokenizer=TOKENIZER, logit_rules=rules, strategy=strategy, **options
    )


def plain_window() -> Window:
    return Window(window_index=0, prompt=TOKENIZER.sot_sequence("en"))


@each_strategy
@few
@given(batch=batches())
def test_a_batch_equals_its_windows_alone(strategy: Strategy, batch: tuple[list[Window], LogitRules]) -> None:
    batch_windows, rules = batch
    together, _ = run(batch_windows, rules, strategy)
    assert together == [run([window], rules, strategy)[0][0] for window in batch_windows]


@pytest.mark.parametrize("penalty", [None, 0.0, 1.0])
@few
@given(batch=batches(most=2))
def test_the_sample_with_the_highest_score_is_kept(
    batch: tuple[list[Window], LogitRules], penalty: float | None
) -> None:
    rows: dict[int, list[Step]] = {}
    results, _ = run(
        *batch,
        Sample(temperature=1.0, best_of=4, length_penalty=penalty),
        observe=lambda step: rows.setdefault(step.row, []).append(step),
    )
    for window, result in enumerate(results):
        samples = [rows[4 * window + sample] for sample in range(4)]
        assert len({tuple(step.token for step in steps) for steps in samples}) > 1
        best = max(score(steps, penalty) for steps in samples)
        assert result.hypothesis.score(penalty) == pytest.approx(best)


def score(steps: list[Step], penalty: float | None) -> float:
    length = max(1, sum(step.token != EOT for step in steps))
    total = sum(step.logprob for step in steps)
    return total / (length if penalty is None else ((5 + length) / 6) ** penalty)


@each_strategy
@few
@given(batch_windows=st.lists(windows(timestamps=True), min_size=1, max_size=3))
def test_every_text_obeys_the_timestamp_grammar(batch_windows: list[Window], strategy: Strategy) -> None:
    for result in run(batch_windows, RULES[True], strategy)[0]:
        tokens = result.hypothesis.tokens
        times = [token for token in tokens if token >= BEGIN]
        assert BEGIN <= tokens[0] <= BEGIN + 50
        assert times == sorted(times)
        for one, other in pairwise(tokens):
            assert one < BEGIN or other < BEGIN or one <= other
        runs = "".join("t" if token >= BEGIN else "x" for token in tokens)
        assert "ttt" not in runs
        assert not runs.startswith("tt")
        assert set(tokens) <= {*TEXT, *TIMES}


@each_strategy
@settings(max_examples=3)
@given(batch_windows=st.lists(windows(timestamps=False), min_size=1, max_size=2))
def test_text_without_eot_has_the_length_of_its_limit(batch_windows: list[Window], strategy: Strategy) -> None:
    """Half of the context, or what a prompt leaves of it: at least one token."""
    full = (TOKENIZER.sot_prev, *TEXT[:1] * (DIMS.n_text_ctx - 4), *TOKENIZER.sot_sequence("en"))
    batch_windows = [*batch_windows, Window(window_index=0, prompt=full)]
    for window, result in zip(batch_windows, run(batch_windows, ENDLESS, strategy)[0], strict=True):
        limit = min(DIMS.n_text_ctx // 2, DIMS.n_text_ctx + 1 - len(window.prompt))
        assert len(result.hypothesis.tokens) == len(result.hypothesis.logprobs) == limit


@few
@given(batch=batches(), strategy=st.sampled_from(STRATEGIES))
def test_no_speech_prob_is_read_after_sot_before_any_rule(
    batch: tuple[list[Window], LogitRules], strategy: Strategy
) -> None:
    batch_windows, rules = batch
    assert TOKENIZER.no_speech in rules.suppressed
    for window, result in zip(batch_windows, run(batch_windows, rules, strategy)[0], strict=True):
        prompt_start = window.prompt[: window.prompt.index(TOKENIZER.sot) + 1]
        session = BACKEND.open_session(FEATURES, [window.window_index], DIMS.n_text_ctx)
        expected = session.extend([prompt_start]).probability(TOKENIZER.no_speech)[0]
        assert result.no_speech_prob == pytest.approx(expected, rel=1e-4)


@few
@given(batch=batches())
def test_text_steps_and_stats_belong_to_the_tokens(batch: tuple[list[Window], LogitRules]) -> None:
    steps: list[Step] = []
    results, stats = run(*batch, Greedy(), observe=steps.append)
    for row, result in enumerate(results):
        data, hypothesis = result.text.encode(), result.hypothesis
        assert result.text == TOKENIZER.decode(hypothesis.tokens).strip()
        assert result.compression_ratio == len(data) / len(zlib.compress(data))
        assert result.temperature == 0
        row_steps = [step for step in steps if step.row == row]
        assert [step.index for step in row_steps] == list(range(len(row_steps)))
        assert [step.token for step in row_steps] == [*hypothesis.tokens, EOT][: len(row_steps)]
        assert tuple(step.logprob for step in row_steps) == hypothesis.logprobs
    lengths = [len(result.hypothesis.logprobs) for result in results]
    assert stats == DecodeStats(
        windows=len(batch[0]),
        forwards=max(lengths),  # the prompts, then one for each token but the last
        prompt_tokens=sum(len(window.prompt) for window in batch[0]),
        sampled_tokens=sum(lengths),
    )


@each_strategy
@few
@given(
    batch=st.lists(windows(timestamps=False), min_size=1, max_size=4),
    rules=st.sampled_from([RULES[False], ENDLESS]),
)
def test_logprobs_and_attention_are_those_that_picked_each_token(
    strategy: Strategy, batch: list[Window], rules: LogitRules
) -> None:
    plain, captured = (run(batch, rules, strategy, attention=on) for on in (False, True))
    assert plain == captured
    assert all(result.hypothesis.attention is None for result in plain[0])
    for window, result in zip(batch, captured[0], strict=True):
        hypothesis = result.hypothesis
        session = BACKEND.open_session(FEATURES, [window.window_index], DIMS.n_text_ctx, attention=True)
        picked = [*hypothesis.tokens, EOT][: len(hypothesis.logprobs)]
        logits = session.extend([[*window.prompt, *picked[:-1]]], len(picked))
        rules.apply(logits, [picked[:index] for index in range(len(picked))])
        chances = [logits.select_positions([i]).probability(token)[0] for i, token in enumerate(picked)]
        np.testing.assert_allclose(hypothesis.logprobs, np.log(chances), atol=1e-4)
        np.testing.assert_array_equal(hypothesis.attention, session.attention(0)[:, len(window.prompt) - 1 :])


@each_strategy
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_an_observer_that_raises_stops_within_one_step(strategy: Strategy, stop: int) -> None:
    def observe(step: Step) -> None:
        if step.index == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([plain_window(), plain_window()], ENDLESS, strategy, observe=observe)
    assert len(BACKEND.sessions[-1].read) == stop + 1


def test_language_probabilities_are_those_of_the_language_tokens(reference_backend: Backend) -> None:
    features = reference_backend.encode(make_mel())
    found = language_probabilities(reference_backend, features, TOKENIZER)
    assert len(found) == N_WINDOWS
    for window_index, results in enumerate(found):
        logits = reference_backend.open_session(features, [window_index], 1).extend([[TOKENIZER.sot]])
        weights = np.array([logits.probability(token)[0] for token in TOKENIZER.language_tokens.values()])
        expected = dict(zip(TOKENIZER.language_tokens, weights / weights.sum(), strict=True))
        assert results == pytest.approx(expected, rel=1e-4)
        assert list(results.values()) == sorted(results.values(), reverse=True)


def test_english_only_model_reports_english() -> None:
    english = type(TOKENIZER).bytes_only(multilingual=False)
    assert language_probabilities(BACKEND, FEATURES, english) == [{"en": 1.0}] * N_WINDOWS

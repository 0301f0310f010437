"""Properties of decoding that hold for any model, windows and prompts; and the prompts."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_windows import BEGIN, END, TEXT, TIMES, rules_over, windows

from fakes.backends import FakeFeatures, ScriptedBackend, random_logits
from harken.decoding import Beam, DecodeStats, Greedy, Sample, Window, decode, make_prompt
from harken.decoding.generate import LoopRule
from tiny_models import DIMS, N_WINDOWS, TOKENIZER

BACKEND = ScriptedBackend(random_logits())
FEATURES = FakeFeatures(N_WINDOWS)
RULES = {
    True: rules_over([*TEXT, *TIMES, END], timestamps=True),
    False: rules_over([*TEXT, END], timestamps=False),
}
ENDLESS = rules_over(TEXT, timestamps=False)

BEAMS = [Beam(width=3), Beam(width=2, patience=2.0, length_penalty=0.6)]
each_strategy = pytest.mark.parametrize(
    "strategy", [Greedy(), *BEAMS, Sample(temperature=0.8, best_of=3)], ids=str
)
few = settings(max_examples=8)


@st.composite
def batches(draw, most=4):
    timestamps = draw(st.booleans())
    return draw(st.lists(windows(timestamps), min_size=1, max_size=most)), RULES[timestamps]


def run(batch, rules, strategy, **options):
    return decode(
        BACKEND, FEATURES, batch, tokenizer=TOKENIZER, logit_rules=rules, strategy=strategy, **options
    )


@each_strategy
@few
@given(batch=batches())
def test_a_batch_equals_its_windows_alone(strategy, batch):
    together, _ = run(*batch, strategy)
    assert together == [run([window], batch[1], strategy)[0][0] for window in batch[0]]


@pytest.mark.parametrize("penalty", [None, 0.0, 1.0])
@few
@given(batch=batches(most=2))
def test_the_sample_with_the_highest_score_is_kept(batch, penalty):
    steps = []
    strategy = Sample(temperature=1.0, best_of=4, length_penalty=penalty)
    results, _ = run(*batch, strategy, observe=steps.append)
    for window, result in enumerate(results):
        samples = [[step for step in steps if step.row == 4 * window + sample] for sample in range(4)]
        assert len({tuple(step.token for step in steps) for steps in samples}) > 1
        best = max(score(steps, penalty) for steps in samples)
        assert result.hypothesis.score(penalty) == pytest.approx(best)


def score(steps, penalty):
    length = max(1, sum(step.token != END for step in steps))
    total = sum(step.logprob for step in steps)
    return total / (length if penalty is None else ((5 + length) / 6) ** penalty)


@each_strategy
@few
@given(batch_windows=st.lists(windows(timestamps=True), min_size=1, max_size=3))
def test_every_text_obeys_the_timestamp_grammar(batch_windows, strategy):
    for result in run(batch_windows, RULES[True], strategy)[0]:
        tokens = result.hypothesis.tokens
        times = [token for token in tokens if token >= BEGIN]
        assert BEGIN <= tokens[0] <= BEGIN + 50
        assert times == sorted(times)
        runs = "".join("t" if token >= BEGIN else "x" for token in tokens)
        assert "ttt" not in runs
        assert not runs.startswith("tt")
        assert set(tokens) <= {*TEXT, *TIMES}


@each_strategy
@settings(max_examples=3)
@given(batch_windows=st.lists(windows(timestamps=False), min_size=1, max_size=2))
def test_text_without_eot_has_the_length_of_its_limit(batch_windows, strategy):
    """Half of the context, or what a prompt leaves of it: at least one token."""
    full = (TOKENIZER.sot_prev, *TEXT[:1] * (DIMS.n_text_ctx - 4), *TOKENIZER.sot_sequence("en"))
    batch_windows = [*batch_windows, Window(window_index=0, prompt=full)]
    for window, result in zip(batch_windows, run(batch_windows, ENDLESS, strategy)[0], strict=True):
        limit = min(DIMS.n_text_ctx // 2, DIMS.n_text_ctx + 1 - len(window.prompt))
        assert len(result.hypothesis.tokens) == len(result.hypothesis.logprobs) == limit


@pytest.mark.parametrize("strategy", [Greedy(), Beam(width=1, patience=0.1)], ids=str)
@few
@given(batch=batches())
def test_text_steps_and_stats_belong_to_the_tokens(strategy, batch):
    steps = []
    results, stats = run(*batch, strategy, observe=steps.append)
    for row, result in enumerate(results):
        data, hypothesis = result.text.encode(), result.hypothesis
        assert result.text == TOKENIZER.decode(hypothesis.tokens).strip()
        assert result.compression_ratio == len(data) / len(zlib.compress(data))
        assert result.temperature == 0
        row_steps = [step for step in steps if step.row == row]
        picked = zip([*hypothesis.tokens, END], hypothesis.logprobs, strict=False)
        assert [(step.index, step.token, step.logprob) for step in row_steps] == [
            (index, *pair) for index, pair in enumerate(picked)
        ]
        assert hypothesis.avg_logprob == sum(hypothesis.logprobs) / (len(hypothesis.tokens) + 1)
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
def test_probabilities_and_attention_are_those_that_picked_each_token(strategy, batch, rules):
    """That of no speech is read behind the start of the transcript, before any rule."""
    assert TOKENIZER.no_speech in rules.suppressed
    plain, captured = (run(batch, rules, strategy, attention=on) for on in (False, True))
    assert plain == captured
    assert all(result.hypothesis.attention is None for result in plain[0])
    for window, result in zip(batch, captured[0], strict=True):
        hypothesis = result.hypothesis
        session = BACKEND.open_session(FEATURES, [window.window_index], DIMS.n_text_ctx, attention=True)
        picked = [*hypothesis.tokens, END][: len(hypothesis.logprobs)]
        behind_sot = window.prompt.index(TOKENIZER.sot) + 1
        no_speech = session.extend([window.prompt[:behind_sot]]).probability(TOKENIZER.no_speech)[0]
        assert result.no_speech_prob == pytest.approx(no_speech, rel=1e-4)
        logits = session.extend([[*window.prompt[behind_sot:], *picked[:-1]]], len(picked))
        rules.apply(logits, [picked[:index] for index in range(len(picked))])
        chances = [logits.select_positions([i]).probability(token)[0] for i, token in enumerate(picked)]
        np.testing.assert_allclose(hypothesis.logprobs, np.log(chances), atol=1e-4)
        np.testing.assert_array_equal(hypothesis.attention, session.attention(0)[:, len(window.prompt) - 1 :])


@each_strategy
def test_an_observer_that_raises_stops_within_one_step(strategy):
    batch = [Window(window_index=0, prompt=TOKENIZER.sot_sequence("en"))] * 2
    for stop in (0, 1, 5):

        def observe(step, stop=stop):
            if step.index == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(batch, ENDLESS, strategy, observe=observe)
        assert len(BACKEND.sessions[-1].read) == stop + 1


@pytest.mark.parametrize("n_timestamps", [0, 2])
def test_a_loop_begins_behind_its_first_unit_whatever_its_times(n_timestamps):
    rule, loop = LoopRule(TOKENIZER.decode, END, max_ratio=1.5), [*b"then he "]
    for repeat in range(8):
        assert rule.begins(loop) is None
        loop += [*b"said so", *[BEGIN + repeat] * n_timestamps]
    assert rule.begins(loop) == 8 + 7 + n_timestamps
    assert replace(rule, max_ratio=9).begins(loop) is None
    assert [n for n in range(len(loop) + 1) if rule.stops(loop[:n])] == [len(loop)]


# --- prompts -----------------------------------------------------------------------------------------------

N_CTX = 448


lengths = st.sampled_from([0, 1, N_CTX // 2 - 2, N_CTX // 2 - 1, N_CTX // 2, 900]) | st.integers(0, 900)


@given(
    initial=lengths,
    previous=lengths,
    timestamps=st.booleans(),
    task=st.sampled_from(["transcribe", "translate"]),
)
@example(initial=0, previous=150, timestamps=True, task="transcribe")
def test_initial_prompt_stays_and_previous_text_loses_its_oldest_tokens(initial, previous, timestamps, task):
    """What stands before the start sequence takes half the context."""
    names, said = [i % 250 for i in range(initial)], [i % 250 + 5 for i in range(previous)]
    asked = {"language": "de", "task": task, "timestamps": timestamps}
    made = make_prompt(TOKENIZER, N_CTX, initial_prompt_tokens=names, previous_tokens=said, **asked)
    kept = names[-(N_CTX // 2 - 1) :]
    text = [*kept, *said[previous - min(previous, N_CTX // 2 - 1 - len(kept)) :]]
    assert made == (*([TOKENIZER.sot_prev, *text] if text else ()), *TOKENIZER.sot_sequence(**asked))

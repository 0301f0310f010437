"""Properties of decoding that hold for any model, windows and prompts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.contract import Backend, Features, Logits, Session
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
LIMIT = DIMS.n_text_ctx // 2


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


@pytest.fixture(scope="module")
def features(reference_backend: Backend) -> Features:
    return reference_backend.encode(make_mel())


@pytest.fixture(scope="module")
def run(
    reference_backend: Backend, features: Features
) -> Callable[..., tuple[list[DecodingResult], DecodeStats]]:
    """Return a function that decodes with the reference backend."""

    def call(
        batch: Sequence[Window], rules: LogitRules, strategy: Strategy, **options: object
    ) -> tuple[list[DecodingResult], DecodeStats]:
        return decode(
            reference_backend,
            features,
            batch,
            tokenizer=TOKENIZER,
            logit_rules=rules,
            strategy=strategy,
            **options,
        )

    return call


Run = Callable[..., tuple[list[DecodingResult], DecodeStats]]
few = settings(max_examples=8)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@few
@given(batch=batches())
def test_a_batch_equals_its_windows_alone(
    run: Run, batch: tuple[list[Window], LogitRules], strategy: Strategy
) -> None:
    batch_windows, rules = batch
    together, _ = run(batch_windows, rules, strategy)
    assert together == [run([window], rules, strategy)[0][0] for window in batch_windows]


def test_the_samples_of_one_window_differ(run: Run) -> None:
    rows: dict[int, list[int]] = {}
    run(
        [plain_window()],
        ENDLESS,
        Sample(temperature=1.0, best_of=4),
        observe=lambda step: rows.setdefault(step.row, []).append(step.token),
    )
    assert len({tuple(tokens) for tokens in rows.values()}) == 4


@pytest.mark.parametrize("penalty", [None, 0.0, 1.0])
@few
@given(batch=batches(most=2))
def test_the_sample_with_the_highest_score_is_kept(
    run: Run, batch: tuple[list[Window], LogitRules], penalty: float | None
) -> None:
    n = 4
    rows: dict[int, list[Step]] = {}
    results, _ = run(
        *batch,
        Sample(temperature=1.0, best_of=n, length_penalty=penalty),
        observe=lambda step: rows.setdefault(step.row, []).append(step),
    )
    for window, result in enumerate(results):
        scores = [score(rows[window * n + sample], penalty) for sample in range(n)]
        assert result.hypothesis.score(penalty) == pytest.approx(max(scores))


def score(steps: list[Step], penalty: float | None) -> float:
    length = max(1, sum(step.token != EOT for step in steps))
    total = sum(step.logprob for step in steps)
    return total / (length if penalty is None else ((5 + length) / 6) ** penalty)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@few
@given(batch=batches())
def test_onnx_decodes_as_the_reference_backend(
    run: Run,
    open_backend: Callable[[str], Backend],
    batch: tuple[list[Window], LogitRules],
    strategy: Strategy,
) -> None:
    backend = open_backend("onnx-fp32")
    batch_windows, rules = batch
    expected, _ = run(batch_windows, rules, strategy)
    results, _ = decode(
        backend,
        backend.encode(make_mel()),
        batch_windows,
        tokenizer=TOKENIZER,
        logit_rules=rules,
        strategy=strategy,
    )
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.hypothesis.tokens == theirs.hypothesis.tokens
        assert ours.hypothesis.logprobs == pytest.approx(theirs.hypothesis.logprobs, abs=1e-4)
        assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, rel=1e-3)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@few
@given(batch_windows=st.lists(windows(timestamps=True), min_size=1, max_size=3))
def test_every_text_obeys_the_timestamp_grammar(
    run: Run, batch_windows: list[Window], strategy: Strategy
) -> None:
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


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@settings(max_examples=3)
@given(batch_windows=st.lists(windows(timestamps=False), min_size=1, max_size=2))
def test_text_without_eot_has_the_length_of_its_limit(
    run: Run, batch_windows: list[Window], strategy: Strategy
) -> None:
    for window, result in zip(batch_windows, run(batch_windows, ENDLESS, strategy)[0], strict=True):
        limit = min(LIMIT, DIMS.n_text_ctx + 1 - len(window.prompt))
        assert len(result.hypothesis.tokens) == len(result.hypothesis.logprobs) == limit


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_full_context_leaves_one_token(run: Run, strategy: Strategy) -> None:
    prompt = (TOKENIZER.sot_prev, *TEXT[:1] * (DIMS.n_text_ctx - 4), *TOKENIZER.sot_sequence("en"))
    (result,), _ = run([Window(window_index=0, prompt=prompt)], ENDLESS, strategy)
    assert len(prompt) == DIMS.n_text_ctx
    assert len(result.hypothesis.tokens) == 1


@few
@given(batch=batches(), strategy=st.sampled_from(STRATEGIES))
def test_no_speech_prob_is_read_after_sot_before_any_rule(
    run: Run,
    reference_backend: Backend,
    features: Features,
    batch: tuple[list[Window], LogitRules],
    strategy: Strategy,
) -> None:
    batch_windows, rules = batch
    assert TOKENIZER.no_speech in rules.suppressed
    for window, result in zip(batch_windows, run(batch_windows, rules, strategy)[0], strict=True):
        prompt_start = window.prompt[: window.prompt.index(TOKENIZER.sot) + 1]
        logits = reference_backend.open_session(features, [window.window_index], DIMS.n_text_ctx).extend(
            [prompt_start]
        )
        assert result.no_speech_prob == pytest.approx(logits.probability(TOKENIZER.no_speech)[0], rel=1e-4)


@few
@given(batch=batches())
def test_text_steps_and_stats_belong_to_the_tokens(run: Run, batch: tuple[list[Window], LogitRules]) -> None:
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


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("rules", [RULES[False], ENDLESS], ids=["some end", "none end"])
@settings(max_examples=3)
@given(batch=st.lists(windows(timestamps=False), min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["numpy", "onnx-fp32"])
def test_attention_is_that_which_picked_each_token_and_changes_nothing_else(
    open_backend: Callable[[str], Backend],
    name: str,
    rules: LogitRules,
    strategy: Strategy,
    batch: list[Window],
) -> None:
    backend = open_backend(name)
    features = backend.encode(make_mel())
    plain, captured = (
        decode(
            backend, features, batch, tokenizer=TOKENIZER, logit_rules=rules, strategy=strategy, attention=on
        )
        for on in (False, True)
    )
    assert plain == captured
    assert all(result.hypothesis.attention is None for result in plain[0])
    for window, result in zip(batch, captured[0], strict=True):
        hypothesis = result.hypothesis
        assert hypothesis.attention is not None
        session = backend.open_session(features, [window.window_index], DIMS.n_text_ctx, attention=True)
        n_picked = len(hypothesis.logprobs)
        session.extend([[*window.prompt, *hypothesis.tokens][: len(window.prompt) + n_picked - 1]])
        expected = session.attention(0)[:, len(window.prompt) - 1 :]
        assert hypothesis.attention.shape[1] == n_picked
        np.testing.assert_allclose(hypothesis.attention, expected, atol=1e-5)


class CountingBackend:
    """A backend that counts the forward passes of its sessions."""

    def __init__(self, backend: Backend) -> None:
        self.dims, self._backend, self.forwards = backend.dims, backend, 0

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> Session:
        session = self._backend.open_session(features, row_windows, capacity, attention=attention)
        extend = session.extend

        def counting_extend(tokens: Sequence[Sequence[int]], tail: int = 1) -> Logits:
            self.forwards += 1
            return extend(tokens, tail)

        session.extend = counting_extend
        return session


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_an_observer_that_raises_stops_within_one_step(
    reference_backend: Backend, features: Features, strategy: Strategy, stop: int
) -> None:
    backend = CountingBackend(reference_backend)

    def observe(step: Step) -> None:
        if step.index == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(
            backend, features, [plain_window(), plain_window()],
            tokenizer=TOKENIZER, logit_rules=ENDLESS, strategy=strategy, observe=observe,
        )  # fmt: skip
    assert backend.forwards == stop + 1


def test_language_probabilities_of_every_backend(reference_backend: Backend, features: Features) -> None:
    batch_windows = language_probabilities(reference_backend, features, TOKENIZER)
    assert len(batch_windows) == N_WINDOWS
    ids = list(TOKENIZER.language_tokens.values())
    for window_index, results in enumerate(batch_windows):
        logits = reference_backend.open_session(features, [window_index], 1).extend([[TOKENIZER.sot]])
        weights = np.array([logits.probability(token)[0] for token in ids])
        expected = dict(zip(TOKENIZER.language_tokens, weights / weights.sum(), strict=True))
        assert results == pytest.approx(expected, rel=1e-4)
        assert list(results.values()) == sorted(results.values(), reverse=True)
        assert sum(results.values()) == pytest.approx(1, abs=1e-4)


def test_english_only_model_reports_english(reference_backend: Backend, features: Features) -> None:
    english = type(TOKENIZER).bytes_only(multilingual=False)
    assert language_probabilities(reference_backend, features, english) == [{"en": 1.0}] * N_WINDOWS


def plain_window() -> Window:
    return Window(window_index=0, prompt=TOKENIZER.sot_sequence("en"))

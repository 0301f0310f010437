"""Partial windows of random models give the text of step-by-step decoding, whatever the draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.backends.numpy import NumpyBackend
from harken.contract import Backend, Features, Floats
from harken.decoding import (
    LogitRules,
    PartialHypothesis,
    PartialWindow,
    decode_partial,
    make_logit_rules,
    make_prompt,
    partial_window,
)
from harken.decoding.alignment_attention import alignment_matrix
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel, make_weights

EOT = TOKENIZER.eot
TEXT = [*b" aeinorst,.", 0xC3, 0xA9]
MODELS = 6
LONGEST = DIMS.n_audio_ctx
EXACT_TOKENS = 16
"""Most tokens that int8 reads at once with the same result as one by one."""
ROUNDING = 1e-6
"""Tolerance of attention weights: sums in float32, in another order in another batch."""
few = settings(max_examples=12)


# --- models, logit rules and windows -----------------------------------------------------------------------


@cache
def model(seed: int) -> tuple[Backend, Features]:
    backend = NumpyBackend(DIMS, make_weights(seed))
    return backend, backend.encode(make_mel(seed=seed))


def make_rules(kept: Sequence[int], prefix: Sequence[int] = ()) -> LogitRules:
    suppressed = sorted(set(range(DIMS.n_vocab)) - {*kept})
    return make_logit_rules(
        TOKENIZER,
        timestamps=False,
        suppress_tokens=suppressed,
        forced_prefix=prefix,
        hotwords=("Ron", "sienna tae"),
    )


RULES = (make_rules([*TEXT, EOT]), make_rules(TEXT), make_rules([*TEXT[::2], EOT]))
token = st.sampled_from(TEXT)
anything = st.one_of(token, token, token, st.integers(0, DIMS.n_vocab - 1))


@st.composite
def windows(draw: st.DrawFn, most: int = 60, *, committed: int = 6) -> PartialWindow:
    prompt = make_prompt(
        TOKENIZER,
        DIMS.n_text_ctx,
        language=draw(st.sampled_from(["en", "jw"])),
        task="transcribe",
        timestamps=False,
        previous_tokens=draw(st.lists(token, max_size=min(8, most))),
    )
    committed_tokens = draw(st.lists(token, max_size=committed))
    room = max(0, most - len(prompt) - len(committed_tokens))
    return PartialWindow(
        window_index=draw(st.integers(0, N_WINDOWS - 1)),
        prompt=prompt,
        committed=tuple(committed_tokens),
        draft_tokens=tuple(draw(st.lists(anything, max_size=min(room, 30)))),
        n_positions=draw(st.integers(8, LONGEST)),
        frame_threshold=draw(st.integers(0, 4)),
    )


def patch_rewind_threshold(positions: int) -> object:
    """Patch the rewind threshold, since the windows of a tiny model are shorter than a second."""
    return patch.object(partial_window, "REWIND_THRESHOLD", positions)


def decode_hypotheses(
    backend: Backend, features: Features, several: Sequence[PartialWindow], rules: LogitRules
) -> list[PartialHypothesis]:
    return decode_partial(backend, features, several, rules, TOKENIZER)[0]


def assert_same(ours: PartialHypothesis, plain: PartialHypothesis, tolerance: float) -> None:
    assert ours.tokens == plain.tokens
    assert ours.reached_eot == plain.reached_eot
    np.testing.assert_array_equal(ours.attended_positions, plain.attended_positions)
    np.testing.assert_allclose(ours.logprobs, plain.logprobs, rtol=0, atol=tolerance)
    np.testing.assert_allclose(ours.attention, plain.attention, rtol=0, atol=max(tolerance, ROUNDING))
    assert (ours.no_speech_prob is None) == (plain.no_speech_prob is None)
    if plain.no_speech_prob is not None:
        assert ours.no_speech_prob == pytest.approx(plain.no_speech_prob, rel=tolerance, abs=0)


# --- the expected result -----------------------------------------------------------------------------------


def decode_step_by_step(
    backend: Backend, features: Features, window: PartialWindow, rules: LogitRules, back: int
) -> PartialHypothesis:
    """Decode one token at a time, with the attention of each, as the expected result."""
    session = backend.open_session(features, [window.window_index], DIMS.n_text_ctx, attention=True)
    logits = session.extend([[*window.prompt, *window.committed]])
    start = len(window.prompt) + len(window.committed)
    most = min(DIMS.n_text_ctx - start, 16 + 10 * window.n_positions // 50 - len(window.committed))
    tokens: list[int] = []
    logprobs: list[float] = []
    max_attended = last_attended = 0
    while True:
        rules.apply(logits, [(*window.committed, *tokens)])
        ids, logprobs_top = logits.top(1)
        position = int(alignment_matrix(session.attention(0), window.n_positions)[-1].argmax())
        ended = ids[0, 0] == EOT
        n_repeated = repeating((*window.committed, *tokens))
        late = window.frame_threshold > 0 and position >= window.n_positions - window.frame_threshold
        if ended or n_repeated or late or position < max_attended - back or len(tokens) >= most:
            break
        max_attended, last_attended = max(max_attended, min(last_attended, position)), position
        tokens.append(int(ids[0, 0]))
        logprobs.append(float(logprobs_top[0, 0]))
        logits = session.extend([[tokens[-1]]])
    n_left = max(0, len(tokens) - n_repeated)
    tokens, logprobs = tokens[:n_left], logprobs[:n_left]
    attention = session.attention(0)[:, : start + len(tokens)]
    positions_attended = alignment_matrix(attention, window.n_positions)[start - 1 :].argmax(axis=1)
    return PartialHypothesis(
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        attended_positions=np.maximum.accumulate(positions_attended),
        attention=attention[:, start - 1 :],
        reached_eot=bool(ended),
        no_speech_prob=None if window.committed else no_speech_probability(backend, features, window),
    )


def repeating(tokens: Sequence[int]) -> int:
    """Return how many of the last tokens repeat those before them, if that makes a loop."""
    for n in range(1, 11):
        times = 5 if n < 4 else 3
        if times * n <= len(tokens) and len({*windowed(tokens, n, times)}) == 1:
            return (times - 1) * n
    return 0


def windowed(tokens: Sequence[int], n: int, times: int) -> list[tuple[int, ...]]:
    """Return the last n tokens, the n before them, and so on."""
    end = len(tokens)
    return [tuple(tokens[end - (i + 1) * n : end - i * n]) for i in range(times)]


def no_speech_probability(backend: Backend, features: Features, window: PartialWindow) -> float:
    """Return the probability of <|nospeech|> right after <|startoftranscript|>."""
    session = backend.open_session(features, [window.window_index], DIMS.n_text_ctx)
    logits = session.extend([window.prompt[: window.prompt.index(TOKENIZER.sot) + 1]])
    return float(logits.probability(TOKENIZER.no_speech)[0])


@settings(max_examples=20)
@given(
    seed=st.integers(0, MODELS - 1),
    window=windows(),
    rules=st.sampled_from(RULES),
    back=st.integers(2, LONGEST),
    data=st.data(),
)
def test_any_draft_gives_the_text_of_step_by_step_decoding(
    seed: int, window: PartialWindow, rules: LogitRules, back: int, data: st.DataObject
) -> None:
    backend, features = model(seed)
    expected = decode_step_by_step(backend, features, window, rules, back)
    n_correct = data.draw(st.integers(0, len(expected.tokens)), label="known")
    drafts = [
        (),
        window.draft_tokens,
        (*expected.tokens[:n_correct], *window.draft_tokens),
        (*expected.tokens, EOT),
    ]
    for draft in drafts:
        with patch_rewind_threshold(back):
            (hypothesis,) = decode_hypotheses(backend, features, [replace(window, draft_tokens=draft)], rules)
        assert_same(hypothesis, expected, 1e-4)


# --- batches, and real decoders ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """A backend with streams of different length, and the tolerance between batches."""

    backend: Backend
    features: Features
    tolerance: float
    most: int


LENGTHS = (LONGEST, 9, 17, 12)
"""Number of positions of each stream."""


@pytest.fixture(scope="module", params=["numpy", "onnx-fp32", "onnx-int8"])
def engine(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> Engine:
    backend = open_backend(request.param)
    encoders = [backend.open_encoder(8) for _ in LENGTHS]
    for encoder, length, mel in zip(encoders, LENGTHS, make_mel(len(LENGTHS)), strict=True):
        encode_stream(backend, encoder, mel, length)
    exact = request.param == "onnx-int8"
    return Engine(
        backend=backend,
        features=backend.stream_features(encoders),
        tolerance=0.0 if exact else 1e-4,
        most=EXACT_TOKENS if exact else 60,
    )


def encode_stream(backend: Backend, encoder: object, mel: Floats, positions: int) -> None:
    """Encode a stream in two chunks with look-ahead."""
    backend.encode_chunk([encoder], mel[None, :, :13], 8)
    backend.encode_chunk([encoder], mel[None, :, 8 : 2 * positions], 2 * positions - 8)


def fitting(drawn: Sequence[PartialWindow], most: int) -> list[PartialWindow]:
    """Limit windows to the positions of their streams, and to the tokens that may be read at once."""
    return [
        replace(
            window,
            n_positions=min(window.n_positions, LENGTHS[window.window_index]),
            draft_tokens=window.draft_tokens[: max(0, most - len(window.prompt) - len(window.committed))],
        )
        for window in drawn
        if len(window.prompt) + len(window.committed) <= most
    ]


@few
@given(
    drawn=st.lists(windows(), min_size=1, max_size=4),
    rules=st.sampled_from(RULES),
    back=st.integers(2, LONGEST),
)
def test_drafted_batch_equals_undrafted_single_windows(
    engine: Engine, drawn: list[PartialWindow], rules: LogitRules, back: int
) -> None:
    """Windows of different length, each with a draft, against each alone without one.

    In int8 every row has a window of its own, as in streaming: two rows of one window share attention passes of more
    than 16 queries, which are exact only up to rounding (docs/decisions/int8.md).
    """
    several = fitting(drawn, engine.most)
    if not engine.tolerance:
        several = list({window.window_index: window for window in several}.values())
    with patch_rewind_threshold(back):
        together = decode_hypotheses(engine.backend, engine.features, several, rules)
        alone = [
            decode_hypotheses(engine.backend, engine.features, [replace(window, draft_tokens=())], rules)[0]
            for window in several
        ]
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other, engine.tolerance)

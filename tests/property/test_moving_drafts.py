"""Windows that grow say what one token after another would, whatever was said of them before: random models."""

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
    Greedy,
    LogitRules,
    PartialHypothesis,
    PartialWindow,
    Window,
    decode,
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
"""As many are read at once in int8 as if they were read one by one."""
ROUNDING = 1e-6
"""Weights that are listened by are told in float32, which is added in another order beside others."""
few = settings(max_examples=12)


# --- models, rules, and what is decoded --------------------------------------------------------------------


@cache
def model(seed: int) -> tuple[Backend, Features]:
    backend = NumpyBackend(DIMS, make_weights(seed))
    return backend, backend.encode(make_mel(seed=seed))


def make_rulings(kept: Sequence[int], prefix: Sequence[int] = ()) -> LogitRules:
    never = sorted(set(range(DIMS.n_vocab)) - {*kept})
    return make_logit_rules(
        TOKENIZER, timestamps=False, suppress_tokens=never, forced_prefix=prefix, hotwords=("Ron", "sienna tae")
    )


RULINGS = (make_rulings([*TEXT, EOT]), make_rulings(TEXT), make_rulings([*TEXT[::2], EOT]))
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
    stands = draw(st.lists(token, max_size=committed))
    room = max(0, most - len(prompt) - len(stands))
    return PartialWindow(
        window_index=draw(st.integers(0, N_WINDOWS - 1)),
        prompt=prompt,
        committed=tuple(stands),
        draft_tokens=tuple(draw(st.lists(anything, max_size=min(room, 30)))),
        n_positions=draw(st.integers(8, LONGEST)),
        frame_threshold=draw(st.integers(0, 4)),
    )


def going_back(positions: int) -> object:
    """So short are the windows of a tiny model that nothing in them goes back by a second."""
    return patch.object(partial_window, "REWIND_THRESHOLD", positions)


def unstopped() -> object:
    """Neither is anything said again too often."""
    return patch.multiple(partial_window, REWIND_THRESHOLD=LONGEST, MIN_LOOP_REPEATS={})


def grown(
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


# --- what is to be said ------------------------------------------------------------------------------------


def one_by_one(
    backend: Backend, features: Features, window: PartialWindow, rules: LogitRules, back: int
) -> PartialHypothesis:
    """What is to be said, by reading a token at a time and asking after each what it listens to."""
    session = backend.open_session(features, [window.window_index], DIMS.n_text_ctx, attention=True)
    logits = session.extend([[*window.prompt, *window.committed]])
    start = len(window.prompt) + len(window.committed)
    most = min(DIMS.n_text_ctx - start, 16 + 10 * window.n_positions // 50 - len(window.committed))
    tokens: list[int] = []
    logprobs: list[float] = []
    furthest = 0
    while True:
        rules.apply(logits, [(*window.committed, *tokens)])
        ids, chances = logits.top(1)
        place = int(alignment_matrix(session.attention(0), window.n_positions)[-1].argmax())
        ended = ids[0, 0] == EOT
        repeated = repeating((*window.committed, *tokens))
        late = window.frame_threshold > 0 and place >= window.n_positions - window.frame_threshold
        if ended or repeated or late or place < furthest - back or len(tokens) >= most:
            break
        furthest = max(furthest, place)
        tokens.append(int(ids[0, 0]))
        logprobs.append(float(chances[0, 0]))
        logits = session.extend([[tokens[-1]]])
    tokens, logprobs = (its[: max(0, len(its) - repeated)] for its in (tokens, logprobs))
    attention = session.attention(0)[:, : start + len(tokens)]
    places = alignment_matrix(attention, window.n_positions)[start - 1 :].argmax(axis=1)
    return PartialHypothesis(
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        attended_positions=np.maximum.accumulate(places),
        attention=attention[:, start - 1 :],
        reached_eot=bool(ended),
        no_speech_prob=None if window.committed else silence(backend, features, window),
    )


def repeating(tokens: Sequence[int]) -> int:
    """How many of the last tokens repeat what stands before them, where that makes a loop."""
    for n in range(1, 11):
        times = 5 if n < 4 else 3
        if times * n <= len(tokens) and len({*windowed(tokens, n, times)}) == 1:
            return (times - 1) * n
    return 0


def windowed(tokens: Sequence[int], n: int, times: int) -> list[tuple[int, ...]]:
    """The last n tokens, the n before them, and so on."""
    end = len(tokens)
    return [tuple(tokens[end - (i + 1) * n : end - i * n]) for i in range(times)]


def silence(backend: Backend, features: Features, window: PartialWindow) -> float:
    """Probability that nothing is said, as the first step of a decode sees it."""
    session = backend.open_session(features, [window.window_index], DIMS.n_text_ctx)
    logits = session.extend([window.prompt[: window.prompt.index(TOKENIZER.sot) + 1]])
    return float(logits.probability(TOKENIZER.no_speech)[0])


@settings(max_examples=20)
@given(
    seed=st.integers(0, MODELS - 1),
    window=windows(),
    rules=st.sampled_from(RULINGS),
    back=st.integers(2, LONGEST),
    data=st.data(),
)
def test_whatever_was_said_before(
    seed: int, window: PartialWindow, rules: LogitRules, back: int, data: st.DataObject
) -> None:
    backend, features = model(seed)
    expected = one_by_one(backend, features, window, rules, back)
    known = data.draw(st.integers(0, len(expected.tokens)), label="known")
    drafts = [
        (),
        window.draft_tokens,
        (*expected.tokens[:known], *window.draft_tokens),
        (*expected.tokens, EOT),
    ]
    for draft in drafts:
        with going_back(back):
            (its,) = grown(backend, features, [replace(window, previous=draft)], rules)
        assert_same(its, expected, 1e-4)


@few
@given(seed=st.integers(0, MODELS - 1), window=windows(committed=0), rules=st.sampled_from(RULINGS[:2]))
def test_where_nothing_stops_it_as_a_plain_decode(seed: int, window: PartialWindow, rules: LogitRules) -> None:
    """Without timestamps, as far as the limit of a window lets it."""
    backend, features = model(seed)
    with unstopped():
        (its,) = grown(backend, features, [replace(window, margin=0)], rules)
    ((plain,), _) = decode(
        backend,
        features,
        [Window(window_index=window.window_index, prompt=window.prompt)],
        tokenizer=TOKENIZER,
        logit_rules=rules,
        strategy=Greedy(),
        attention=True,
    )
    expected = plain.hypothesis
    n = len(its.tokens)
    assert its.tokens == expected.tokens[:n]
    assert its.logprobs == pytest.approx(expected.logprobs[:n], abs=1e-4)
    assert its.no_speech_prob == pytest.approx(plain.no_speech_prob, rel=1e-4)
    if its.reached_eot:
        assert n == len(expected.tokens) < len(expected.logprobs)
        np.testing.assert_allclose(its.attention, expected.attention, atol=1e-5)
    else:
        assert n == min(16 + 10 * window.n_positions // 50, DIMS.n_text_ctx - len(window.prompt))


@few
@given(
    seed=st.integers(0, MODELS - 1),
    window=windows(),
    committed=st.lists(token, min_size=1, max_size=6),
    kept=st.sampled_from([[*TEXT, EOT], TEXT]),
)
def test_what_is_committed_is_a_prefix_that_is_forced(
    seed: int, window: PartialWindow, committed: list[int], kept: list[int]
) -> None:
    backend, features = model(seed)
    window = replace(window, committed=tuple(committed), margin=0)
    with unstopped():
        (its,) = grown(backend, features, [window], make_rulings(kept))
    ((plain,), _) = decode(
        backend,
        features,
        [Window(window_index=window.window_index, prompt=window.prompt)],
        tokenizer=TOKENIZER,
        logit_rules=make_rulings(kept, prefix=committed),
        strategy=Greedy(),
    )
    whole = (*committed, *its.tokens)
    assert whole == plain.hypothesis.tokens[: len(whole)]
    assert its.logprobs == pytest.approx(plain.hypothesis.logprobs[len(committed) : len(whole)], abs=1e-4)
    assert its.no_speech_prob is None


# --- several, and real decoders ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """A backend with streams of different length, and how far a number may be from that of another batch."""

    backend: Backend
    features: Features
    tolerance: float
    most: int


LENGTHS = (LONGEST, 9, 17, 12)
"""Positions that each stream has."""


@pytest.fixture(scope="module", params=["numpy", "onnx-fp32", "onnx-int8"])
def engine(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> Engine:
    backend = open_backend(request.param)
    encoders = [backend.open_encoder(8) for _ in LENGTHS]
    for encoder, length, mel in zip(encoders, LENGTHS, make_mel(len(LENGTHS)), strict=True):
        hear(backend, encoder, mel, length)
    exact = request.param == "onnx-int8"
    return Engine(
        backend=backend,
        features=backend.stream_features(encoders),
        tolerance=0.0 if exact else 1e-4,
        most=EXACT_TOKENS if exact else 60,
    )


def hear(backend: Backend, encoder: object, mel: Floats, positions: int) -> None:
    """Hear a stream in two windows, of which some is look-ahead."""
    backend.encode_chunk([encoder], mel[None, :, :13], 8)
    backend.encode_chunk([encoder], mel[None, :, 8 : 2 * positions], 2 * positions - 8)


def fitting(drawn: Sequence[PartialWindow], most: int) -> list[PartialWindow]:
    """Windows of as many positions as their streams have, and no more tokens than may be read at once."""
    return [
        replace(
            its,
            positions=min(its.n_positions, LENGTHS[its.window_index]),
            previous=its.draft_tokens[: max(0, most - len(its.prompt) - len(its.committed))],
        )
        for its in drawn
        if len(its.prompt) + len(its.committed) <= most
    ]


@few
@given(
    drawn=st.lists(windows(), min_size=1, max_size=4),
    rules=st.sampled_from(RULINGS),
    back=st.integers(2, LONGEST),
)
def test_whatever_is_decoded_together(
    engine: Engine, drawn: list[PartialWindow], rules: LogitRules, back: int
) -> None:
    """Windows of different length, each with a draft, and each alone without one."""
    several = fitting(drawn, engine.most)
    with going_back(back):
        together = grown(engine.backend, engine.features, several, rules)
        alone = [
            grown(engine.backend, engine.features, [replace(its, previous=())], rules)[0] for its in several
        ]
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other, engine.tolerance)


@few
@given(
    window=windows(committed=4),
    rules=st.sampled_from(RULINGS),
    back=st.integers(2, LONGEST),
    cut=st.integers(0, 12),
)
def test_a_draft_of_what_is_said(
    engine: Engine, window: PartialWindow, rules: LogitRules, back: int, cut: int
) -> None:
    """Right up to some place: there it goes on as it would have without."""
    for its in fitting([replace(window, previous=())], engine.most):
        with going_back(back):
            (plain,) = grown(engine.backend, engine.features, [its], rules)
            draft = (*plain.tokens[:cut], *window.draft_tokens)
            for one in fitting([replace(its, previous=draft)], engine.most):
                (ours,) = grown(engine.backend, engine.features, [one], rules)
                assert_same(ours, plain, engine.tolerance)

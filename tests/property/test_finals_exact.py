"""Exact finals say what a transcription of the utterance's samples says, whatever was heard before: random models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.drafts import measured_controller
from fakes.speech_detector import noise_and_silence
from harken.api import Recognizer
from harken.contract import Backend
from harken.decoding import SpeculativeDecoder
from harken.results import Segment
from harken.streaming.worker import FinalPass, FinalRequest
from harken.transcribe import TranscribeOptions, WindowDecoder
from tiny_models import DIMS, TOKENIZER

WINDOW_S = 0.02 * DIMS.n_audio_ctx
BEGIN, END = TOKENIZER.timestamp_begin, DIMS.n_vocab
ENGINES = ["onnx-fp32", "onnx-int8"]

pytestmark = pytest.mark.usefixtures("amplitude_vad")

lengths_s = st.lists(st.sampled_from([0.3 * WINDOW_S, 0.9 * WINDOW_S, 2.5 * WINDOW_S]), min_size=1, max_size=4)
recordings = st.builds(
    lambda lengths, seed: noise_and_silence(*lengths, seed=seed), lengths_s, st.integers(0, 9)
)
options = st.builds(
    TranscribeOptions,
    language=st.sampled_from([None, "en"]),
    multilingual=st.booleans(),
    temperatures=st.sampled_from([(0.0,), (0.0, 0.7), (1.0,)]),
    beam_size=st.sampled_from([1, 1, 3]),
    best_of=st.just(2),
    timestamps=st.booleans(),
    condition_on_previous_text=st.booleans(),
    word_timestamps=st.booleans(),
    initial_prompt=st.sampled_from([None, "Ann, Bo"]),
    fidelity=st.sampled_from(["exact", "fast"]),
    vad=st.sampled_from([True, True, False]),
    vad_min_silence_s=st.just(0.3),
    vad_padding_s=st.just(0.05),
    hallucination_threshold=st.none(),
)


@pytest.fixture(scope="module", params=ENGINES)
def recognizer(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> Recognizer:
    return Recognizer(open_backend(request.param), TOKENIZER, "tiny")


def said(segments: tuple[Segment, ...]) -> list[tuple[Any, ...]]:
    """What must be equal: numbers only so far as rounding in another batch lets them be."""
    return [
        (
            its.index,
            round(its.start_s, 6),
            round(its.end_s, 6),
            its.text,
            its.tokens,
            its.language,
            round(its.seek_s, 6),
            round(its.avg_logprob, 3),
            [(attempt.temperature, attempt.reason is None) for attempt in its.attempts],
            [(word.text, round(word.start_s, 6), round(word.end_s, 6)) for word in its.words],
        )
        for its in segments
    ]


def shifted(segments: tuple[Segment, ...], by_s: float) -> list[tuple[Any, ...]]:
    """As `said`, later."""
    moved = [
        replace(
            its,
            start_s=its.start_s + by_s,
            end_s=its.end_s + by_s,
            seek_s=its.seek_s + by_s,
            words=tuple(replace(w, start_s=w.start_s + by_s, end_s=w.end_s + by_s) for w in its.words),
        )
        for its in segments
    ]
    return said(tuple(moved))


def recalled(how: str, segments: tuple[Segment, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """What was heard before, by how well it was heard."""
    tokens = [token for its in segments for token in its.tokens]
    match how:
        case "without times":
            return tuple(token for token in tokens if token < BEGIN)
        case "half":
            return tuple(t if rng.random() < 0.7 else int(rng.integers(TOKENIZER.eot)) for t in tokens)
        case "wrong":
            return tuple(rng.integers(END, size=30).tolist())
        case "nothing":
            return ()
    return tuple(tokens)


@settings(max_examples=9)
@given(
    many=st.lists(recordings, min_size=1, max_size=3),
    how=st.lists(st.sampled_from(["all", "without times", "half", "wrong", "nothing"]), min_size=3, max_size=3),
    options=options,
    starts_s=st.lists(st.sampled_from([0.0, 3.5, 36_000.0]), min_size=3, max_size=3),
    size=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_finals_are_what_transcription_says(
    recognizer: Recognizer,
    many: list[np.ndarray],
    how: list[str],
    options: TranscribeOptions,
    starts_s: list[float],
    size: int,
    seed: int,
) -> None:
    plain = [recognizer.transcribe(samples, options).result().segments for samples in many]
    rng = np.random.default_rng(seed)
    utterances = [
        FinalRequest(samples=samples, start_s=start_s, draft_tokens=recalled(its, segments, rng))
        for samples, start_s, its, segments in zip(many, starts_s, how, plain, strict=False)
    ]
    speculator = SpeculativeDecoder(float)
    speculator.greedy.controller, speculator.sampling.controller = measured_controller(), measured_controller()
    for drafting in (speculator, None):
        hearing = WindowDecoder(recognizer.backend, TOKENIZER, options, drafting)
        finals = FinalPass(hearing, size).transcribe(utterances)
        assert [said(its) for its in finals] == [
            shifted(segments, start_s) for segments, start_s in zip(plain, starts_s, strict=False)
        ]

"""Words and their times, against those of openai-whisper (see record_words.py)."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words_inputs import Case

from harken.audio import stream_audio
from harken.decoding import Greedy, Window, decode, make_logit_rules, make_prompt
from harken.errors import OptionError
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.segments import TokenSegment, split_at_timestamps
from harken.transcribe.word_timestamps import (
    align_decoded,
    align_tokens,
    align_words,
    text_tokens,
    words_by_segment,
)
from harken.types import WINDOW_FRAMES
from real_models import EXAMPLE, larger_recognizer, recognizer

GOLDEN = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
TOLERANCE_S = 0.02 + 1e-6
"""One timestamp position."""
POSITION_S = 0.02
OPTIONS: dict[str, Any] = {
    "word_timestamps": True,
    "temperatures": (0.0,),
    "condition_on_previous_text": False,
    "vad": False,
    "hallucination_threshold": None,
}
MARKS = {"jfk": [pytest.mark.real]}
"""The example takes a second and comes with the package; the others take longer."""


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param(
            recorded,
            id=recorded["recording"],
            marks=MARKS.get(recorded["recording"], [pytest.mark.real, pytest.mark.slow]),
        )
        for recorded in GOLDEN["recordings"]
    ],
)
def test_words_have_the_times_of_the_reference(recorded: dict[str, Any]) -> None:
    case = Case(**{name: recorded[name] for name in ("recording", "model", "language")})
    if not case.path.is_file():
        pytest.skip(f"{case.path} is not there")
    assert hashlib.sha256(case.path.read_bytes()).hexdigest() == recorded["sha256"]
    model = recognizer("fp32") if case.model == "tiny.en" else larger_recognizer(case.model)
    segments = model.transcribe(case.path, language=case.language, **OPTIONS).result().segments
    expected = recorded["segments"]
    assert [segment.tokens for segment in segments] == [tuple(segment["tokens"]) for segment in expected]
    assert [round(100 * segment.seek_s) for segment in segments] == [segment["seek"] for segment in expected]
    words = [word for segment in segments for word in segment.words]
    reference = [word for segment in expected for word in segment["words"]]
    assert [word.text for word in words] == [text for text, *_ in reference]
    times = [(word.start_s, word.end_s) for word in words]
    np.testing.assert_allclose(times, [word[1:3] for word in reference], atol=TOLERANCE_S, rtol=0)
    np.testing.assert_allclose(
        [word.probability for word in words], [word[3] for word in reference], atol=2e-3, rtol=0
    )
    spans = [(segment.start_s, segment.end_s) for segment in segments]
    np.testing.assert_allclose(
        spans, [(segment["start"], segment["end"]) for segment in expected], atol=TOLERANCE_S, rtol=0
    )


@cache
def first_window() -> DecodedWindow:
    """Decode the first window of the example."""
    return DecodedWindow()


class DecodedWindow:
    """A window of the example, decoded as the reference does, with the attention kept."""

    def __init__(self) -> None:
        model = recognizer("fp32")
        backend = self.backend = model.backend
        self.tokenizer = model.tokenizer
        mel, frames = MelWindows(stream_audio(EXAMPLE), backend.dims.n_mels, WINDOW_FRAMES).window(0, None)
        self.features = backend.encode(mel)
        prompt = make_prompt(
            self.tokenizer, backend.dims.n_text_ctx, language="en", task="transcribe", timestamps=True
        )
        (decoded,), _ = decode(
            backend,
            self.features,
            [Window(window_index=0, prompt=prompt)],
            tokenizer=self.tokenizer,
            logit_rules=make_logit_rules(self.tokenizer, timestamps=True),
            strategy=Greedy(),
            attention=True,
        )
        self.hypothesis = decoded.hypothesis
        self.n_positions = frames // 2
        self.token_segments, _ = split_at_timestamps(
            self.hypothesis.tokens, self.tokenizer.timestamp_begin, frames / 2
        )


@pytest.mark.real
def test_known_text_is_aligned_like_its_transcript() -> None:
    window = first_window()
    tokens = text_tokens(window.token_segments, window.tokenizer)
    backend, tokenizer = window.backend, window.tokenizer
    expected = align_tokens(backend, window.features, 0, tokens, tokenizer, window.n_positions, language="en")
    text = tokenizer.decode(tokens)
    words = align_words(backend, window.features, f" {text}\n", tokenizer, window.n_positions, language="en")
    assert "".join(word.text for word in words) == text
    assert [word.start for word in words] == expected.bounds[:-1].tolist()  # each word is one token
    assert words[-1].end == expected.bounds[-1]
    assert align_words(backend, window.features, " ", tokenizer, window.n_positions, language="en") == []


@pytest.mark.real
def test_text_longer_than_the_decoder_context_is_refused() -> None:
    window = first_window()
    with pytest.raises(OptionError, match="text='600 tokens': allowed is at most 445 tokens for one window"):
        align_words(
            window.backend, window.features, " no" * 600, window.tokenizer, window.n_positions, language="en"
        )


@pytest.mark.real
def test_alignment_from_decoding_agrees_with_a_second_pass() -> None:
    window = first_window()
    backend, tokenizer = window.backend, window.tokenizer
    decoded = align_decoded(window.hypothesis, window.token_segments, tokenizer, window.n_positions)
    second_pass = align_tokens(
        backend, window.features, 0, decoded.tokens, tokenizer, window.n_positions, language="en"
    )
    assert decoded.tokens == text_tokens(window.token_segments, tokenizer)
    difference_s = np.abs(decoded.bounds - second_pass.bounds) * POSITION_S
    assert np.median(difference_s) <= TOLERANCE_S
    assert difference_s.mean() <= TOLERANCE_S  # 0.01 s when this was written
    assert decoded.probabilities.shape == (len(decoded.tokens),)
    assert decoded.probabilities.min() > 0


@pytest.mark.real
def test_segment_without_text_has_no_words() -> None:
    window = first_window()
    empty = [TokenSegment(start=0, end=4, tokens=window.token_segments[0].tokens[:1])]
    alignment = align_decoded(window.hypothesis, empty, window.tokenizer, window.n_positions)
    assert words_by_segment(empty, alignment, window.tokenizer, language="en") == ([[]], 0.0)

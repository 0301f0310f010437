"""Words and their times, against those of openai-whisper (see record_words.py)."""

from __future__ import annotations

import hashlib
import json
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


class DecodedWindow:
    """The first window of the example, decoded as the reference does, with the attention kept."""

    def __init__(self) -> None:
        model = recognizer("fp32")
        backend, tokenizer = model.backend, model.tokenizer
        mel, frames = MelWindows(stream_audio(EXAMPLE), backend.dims.n_mels, WINDOW_FRAMES).window(0, None)
        features = backend.encode(mel)
        prompt = make_prompt(
            tokenizer, backend.dims.n_text_ctx, language="en", task="transcribe", timestamps=True
        )
        rules = make_logit_rules(tokenizer, timestamps=True)
        (decoded,), _ = decode(
            backend, features, [Window(window_index=0, prompt=prompt)],
            tokenizer=tokenizer, logit_rules=rules, strategy=Greedy(), attention=True,
        )  # fmt: skip
        n_positions = frames // 2
        tokens = decoded.hypothesis.tokens
        self.tokenizer = tokenizer
        self.token_segments, _ = split_at_timestamps(tokens, tokenizer.timestamp_begin, frames / 2)
        self.text_tokens = text_tokens(self.token_segments, tokenizer)
        self.second_pass = align_tokens(
            backend, features, 0, self.text_tokens, tokenizer, n_positions, language="en"
        )
        self.align_decoded = lambda segments: align_decoded(
            decoded.hypothesis, segments, tokenizer, n_positions
        )
        self.align_words = lambda text: align_words(
            backend, features, text, tokenizer, n_positions, language="en"
        )


@pytest.fixture(scope="module")
def window() -> DecodedWindow:
    return DecodedWindow()


@pytest.mark.real
def test_known_text_is_aligned_like_its_transcript(window: DecodedWindow) -> None:
    text = window.tokenizer.decode(window.text_tokens)
    words = window.align_words(f" {text}\n")
    assert "".join(word.text for word in words) == text
    assert [word.start for word in words] == window.second_pass.bounds[:-1].tolist()  # each word is one token
    assert words[-1].end == window.second_pass.bounds[-1]
    assert window.align_words(" ") == []


@pytest.mark.real
def test_text_longer_than_the_decoder_context_is_refused(window: DecodedWindow) -> None:
    with pytest.raises(OptionError, match="text='600 tokens': allowed is at most 445 tokens for one window"):
        window.align_words(" no" * 600)


@pytest.mark.real
def test_alignment_from_decoding_agrees_with_a_second_pass(window: DecodedWindow) -> None:
    decoded = window.align_decoded(window.token_segments)
    assert decoded.tokens == window.text_tokens
    difference_s = np.abs(decoded.bounds - window.second_pass.bounds) * POSITION_S
    assert np.median(difference_s) <= TOLERANCE_S
    assert difference_s.mean() <= TOLERANCE_S  # 0.01 s when this was written
    assert decoded.probabilities.shape == (len(decoded.tokens),)
    assert decoded.probabilities.min() > 0


@pytest.mark.real
def test_segment_without_text_has_no_words(window: DecodedWindow) -> None:
    empty = [TokenSegment(start=0, end=4, tokens=window.token_segments[0].tokens[:1])]
    alignment = window.align_decoded(empty)
    assert words_by_segment(empty, alignment, window.tokenizer, language="en") == ([[]], 0.0)

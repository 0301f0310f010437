"""When each word is spoken, against what openai-whisper found (see record_words.py)."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words_inputs import Case

import harken
from harken.audio import stream_audio
from harken.decoding import Greedy, Window, decode, make_logit_rules, make_prompt
from harken.errors import OptionError
from harken.results import Segment, Word
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.segments import TokenSegment, split_at_timestamps
from harken.transcribe.word_boundaries import refine_word_boundaries
from harken.transcribe.word_timestamps import (
    WordTiming,
    align_decoded,
    align_tokens,
    align_words,
    text_tokens,
    words_by_segment,
)
from harken.types import FRAMES_PER_SECOND, WINDOW_FRAMES
from real_models import larger_recognizer, recognizer

GOLDEN = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
TOLERANCE_S = 0.02 + 1e-6
"""One step of timestamps."""
STEP_S = 0.02


def model(name: str) -> harken.Recognizer:
    return recognizer("fp32") if name == "tiny.en" else larger_recognizer(name)


def case_of(recorded: dict[str, Any]) -> Case:
    case = Case(**{name: recorded[name] for name in ("recording", "model", "language")})
    if not case.path.is_file():
        pytest.skip(f"{case.path} is not there")
    assert hashlib.sha256(case.path.read_bytes()).hexdigest() == recorded["sha256"]
    return case


@cache
def example() -> Listening:
    """The first window of the example."""
    return Listening(Case(recording="jfk"), 0)


class Listening:
    """One window, decoded as the reference does it, with what its decoder listened to."""

    def __init__(self, case: Case, seek: int) -> None:
        self.its = model(case.model)
        backend, self.tokenizer = self.its.backend, self.its.tokenizer
        windows = MelWindows(stream_audio(case.path), backend.dims.n_mels, WINDOW_FRAMES)
        mel, self.frames = windows.window(seek, None)
        self.features = backend.encode(mel)
        prompt = make_prompt(
            self.tokenizer, backend.dims.n_text_ctx, language=case.language, task="transcribe", timestamps=True
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
        self.steps = self.frames // 2
        self.cuts, _ = split_at_timestamps(
            self.hypothesis.tokens, self.tokenizer.timestamp_begin, self.frames / 2
        )

    def segment(self, seek: int, cut: TokenSegment, words: list[WordTiming]) -> Segment:
        def time_s(step: float) -> float:
            return seek / FRAMES_PER_SECOND + step * STEP_S

        return Segment(
            index=0,
            start_s=time_s(cut.start),
            end_s=time_s(cut.end),
            text="",
            tokens=cut.tokens,
            temperature=0,
            avg_logprob=0,
            compression_ratio=1,
            no_speech_prob=0,
            seek_s=seek / FRAMES_PER_SECOND,
            words=tuple(
                Word(start_s=time_s(w.start), end_s=time_s(w.end), text=w.text, probability=w.probability)
                for w in words
            ),
        )


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("recorded", GOLDEN["recordings"], ids=lambda recorded: recorded["recording"])
def test_float32_hears_every_word_when_the_reference_does(recorded: dict[str, Any]) -> None:
    case = case_of(recorded)
    last_s = 0.0
    for seek, segments in groupby(recorded["segments"], key=lambda segment: segment["seek"]):
        expected = list(segments)
        window = Listening(case, seek)
        alignment = align_tokens(
            window.its.backend,
            window.features,
            0,
            text_tokens(window.cuts, window.tokenizer),
            window.tokenizer,
            window.steps,
            language=case.language,
        )
        words, usual = words_by_segment(window.cuts, alignment, window.tokenizer, language=case.language)
        found, last_s = refine_word_boundaries(
            [window.segment(seek, *pair) for pair in zip(window.cuts, words, strict=True)],
            median_duration_s=usual * STEP_S,
            last_speech_s=last_s,
        )
        found = [segment for segment in found if segment.words and segment.start_s < segment.end_s]
        assert [list(segment.tokens) for segment in found] == [segment["tokens"] for segment in expected]
        for segment, its in zip(found, expected, strict=True):
            assert [word.text for word in segment.words] == [text for text, *_ in its["words"]]
            times = [(word.start_s, word.end_s) for word in segment.words]
            np.testing.assert_allclose(times, [word[1:3] for word in its["words"]], atol=TOLERANCE_S, rtol=0)
            assert segment.start_s == pytest.approx(its["start"], abs=TOLERANCE_S)
            assert segment.end_s == pytest.approx(its["end"], abs=TOLERANCE_S)
            probabilities = [word.probability for word in segment.words]
            np.testing.assert_allclose(probabilities, [word[3] for word in its["words"]], atol=2e-3, rtol=0)


@pytest.mark.real
def test_a_known_text_is_aligned_as_its_transcript_is() -> None:
    window = example()
    tokens = text_tokens(window.cuts, window.tokenizer)
    backend, tokenizer = window.its.backend, window.tokenizer
    expected = align_tokens(backend, window.features, 0, tokens, tokenizer, window.steps, language="en")
    text = tokenizer.decode(tokens)
    words = align_words(backend, window.features, f" {text}\n", tokenizer, window.steps, language="en")
    assert "".join(word.text for word in words) == text
    assert [word.start for word in words] == expected.bounds[:-1].tolist()  # each word of it is one token
    assert words[-1].end == expected.bounds[-1]
    assert align_words(backend, window.features, " ", tokenizer, window.steps, language="en") == []


@pytest.mark.real
def test_a_text_that_does_not_fit_is_refused() -> None:
    window = example()
    with pytest.raises(OptionError, match="text='600 tokens': allowed is at most 445 tokens for one window"):
        align_words(
            window.its.backend, window.features, " no" * 600, window.tokenizer, window.steps, language="en"
        )


@pytest.mark.real
def test_the_decode_itself_knows_when_words_are_spoken() -> None:
    window = example()
    backend, tokenizer = window.its.backend, window.tokenizer
    found = align_decoded(window.hypothesis, window.cuts, tokenizer, window.steps)
    again = align_tokens(backend, window.features, 0, found.tokens, tokenizer, window.steps, language="en")
    assert found.tokens == text_tokens(window.cuts, tokenizer)
    apart_s = np.abs(found.bounds - again.bounds) * STEP_S
    assert np.median(apart_s) <= TOLERANCE_S
    assert apart_s.mean() <= TOLERANCE_S  # 0.01 s when this was written
    assert found.probabilities.shape == (len(found.tokens),)
    assert found.probabilities.min() > 0


@pytest.mark.real
def test_nothing_said_is_no_words() -> None:
    window = example()
    empty = [TokenSegment(start=0, end=4, tokens=window.cuts[0].tokens[:1])]
    alignment = align_decoded(window.hypothesis, empty, window.tokenizer, window.steps)
    assert words_by_segment(empty, alignment, window.tokenizer, language="en") == ([[]], 0.0)

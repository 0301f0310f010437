"""When each word is spoken, against what openai-whisper found (see record_words.py)."""

from __future__ import annotations

import hashlib
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words_inputs import Case

import harken
from harken.audio import stream
from harken.decoding import Greedy, Window, decode, make_prompt, make_rules
from harken.results import Segment, Word
from harken.transcribe.alignment import align_text, text_tokens
from harken.transcribe.segments import Cut, cut
from harken.transcribe.settle import settle
from harken.transcribe.windows import MelWindows
from harken.transcribe.words import TimedWord, window_words
from harken.types import FRAMES_PER_SECOND, WINDOW_FRAMES
from real import larger_recognizer, recognizer

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


class Listening:
    """One window, decoded as the reference does it, with what its decoder listened to."""

    def __init__(self, case: Case, seek: int) -> None:
        self.its = model(case.model)
        backend, self.tokenizer = self.its.backend, self.its.tokenizer
        windows = MelWindows(stream(case.path), backend.dims.n_mels, WINDOW_FRAMES)
        mel, self.frames = windows.window(seek, None)
        self.features = backend.encode(mel)
        prompt = make_prompt(
            self.tokenizer, backend.dims.n_text_ctx, language=case.language, task="transcribe", timestamps=True
        )
        (decoded,), _ = decode(
            backend,
            self.features,
            [Window(audio=0, prompt=prompt)],
            tokenizer=self.tokenizer,
            rules=make_rules(self.tokenizer, timestamps=True),
            strategy=Greedy(),
            attention=True,
        )
        self.hypothesis = decoded.hypothesis
        self.steps = self.frames // 2
        self.cuts, _ = cut(self.hypothesis.tokens, self.tokenizer.timestamp_begin, self.frames / 2)

    def segment(self, seek: int, cut: Cut, words: list[TimedWord]) -> Segment:
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
        alignment = align_text(
            window.its.backend,
            window.features,
            0,
            text_tokens(window.cuts, window.tokenizer),
            window.tokenizer,
            window.steps,
            language=case.language,
        )
        words, usual = window_words(window.cuts, alignment, window.tokenizer, language=case.language)
        found, last_s = settle(
            [window.segment(seek, *pair) for pair in zip(window.cuts, words, strict=True)],
            usual_s=usual * STEP_S,
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

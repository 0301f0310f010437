"""Word timestamps of single windows, against those of openai-whisper (see record_words.py)."""

from __future__ import annotations

from functools import cache

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

TOLERANCE_S = 0.02 + 1e-6
"""One timestamp position."""
POSITION_S = 0.02


def model(name: str) -> harken.Recognizer:
    return recognizer("fp32") if name == "tiny.en" else larger_recognizer(name)


@cache
def example() -> DecodedWindow:
    """Return the first window of the example."""
    return DecodedWindow(Case(recording="jfk"), 0)


class DecodedWindow:
    """One window, decoded as the reference does, with the attention kept."""

    def __init__(self, case: Case, seek: int) -> None:
        recognizer = model(case.model)
        self.backend, self.tokenizer = recognizer.backend, recognizer.tokenizer
        backend = self.backend
        windows = MelWindows(stream_audio(case.path), backend.dims.n_mels, WINDOW_FRAMES)
        mel, frames = windows.window(seek, None)
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
        self.n_positions = frames // 2
        self.token_segments, _ = split_at_timestamps(
            self.hypothesis.tokens, self.tokenizer.timestamp_begin, frames / 2
        )

    def segment(self, seek: int, token_segment: TokenSegment, words: list[WordTiming]) -> Segment:
        def time_s(position: float) -> float:
            return seek / FRAMES_PER_SECOND + position * POSITION_S

        return Segment(
            index=0,
            start_s=time_s(token_segment.start),
            end_s=time_s(token_segment.end),
            text="",
            tokens=token_segment.tokens,
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
def test_known_text_is_aligned_like_its_transcript() -> None:
    window = example()
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
    window = example()
    with pytest.raises(OptionError, match="text='600 tokens': allowed is at most 445 tokens for one window"):
        align_words(
            window.backend, window.features, " no" * 600, window.tokenizer, window.n_positions, language="en"
        )


@pytest.mark.real
def test_alignment_from_decoding_agrees_with_a_second_pass() -> None:
    window = example()
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
    window = example()
    empty = [TokenSegment(start=0, end=4, tokens=window.token_segments[0].tokens[:1])]
    alignment = align_decoded(window.hypothesis, empty, window.tokenizer, window.n_positions)
    assert words_by_segment(empty, alignment, window.tokenizer, language="en") == ([[]], 0.0)

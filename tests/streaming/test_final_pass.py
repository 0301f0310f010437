"""The final pass: languages, fewer decoder passes; `test_live_sessions.py` compares it with offline transcription."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes.backends import (
    WINDOW_POSITIONS,
    WINDOW_S,
    ScriptedBackend,
    TranscriptBackend,
    logits_of_texts,
    timestamp_token,
    window_text,
)
from fakes.drafts import eager_decoder
from fakes.speech_detector import noise_and_silence
from harken.errors import AudioError, OptionError
from harken.results import Segment
from harken.streaming.worker import FinalRequest, final_pass
from harken.transcribe import TranscribeOptions, WindowDecoder
from tiny_models import DIMS, TOKENIZER

NOISE = noise_and_silence(WINDOW_S)
OPTIONS = TranscribeOptions(
    language="en", vad=False, hallucination_threshold=None, temperatures=(0.0,), suppress_tokens=()
)
LAST = DIMS.n_audio_ctx - 1
TOKENS = (
    timestamp_token(0),
    *TOKENIZER.encode("hello there."),
    timestamp_token(9),
    timestamp_token(9),
    *TOKENIZER.encode("good day"),
    timestamp_token(LAST),
    TOKENIZER.eot,
)
PROMPT = len(TOKENIZER.sot_sequence("en", "transcribe", timestamps=True))


def test_streamed_text_without_timestamps_saves_decoder_passes():
    """Passes: the prompt with the first segment up to its end, the next up to its end, the last timestamp."""
    backend = ScriptedBackend(logits_of_texts([TOKENS], PROMPT, DIMS.n_vocab), 64)
    window_decoder = WindowDecoder(backend, TOKENIZER, OPTIONS, eager_decoder())
    draft = tuple(token for token in TOKENS if token < TOKENIZER.eot)
    (segments,) = final_pass(window_decoder, [FinalRequest(samples=NOISE, start_s=0.0, draft_tokens=draft)], 4)
    assert [segment.text for segment in segments] == ["hello there.", "good day"]
    assert window_decoder.stats.forwards == 3
    assert window_decoder.stats.sampled_tokens == len(TOKENS)


@pytest.mark.parametrize(
    ("option", "requested", "language"),
    [(None, "de", "de"), (None, "German", "de"), ("fr", "de", "fr"), (None, None, "en")],
)
def test_language_option_wins_over_the_request_and_that_over_detection(option, requested, language):
    ((segment,),) = hello(FinalRequest(samples=NOISE, start_s=0.0, language=requested), language=option)
    assert segment.language == language


def test_unknown_language_and_an_utterance_without_samples_are_refused():
    with pytest.raises(OptionError, match="klingon"):
        hello(FinalRequest(samples=NOISE, start_s=0.0, language="klingon"))
    with pytest.raises(AudioError, match="no audio"):
        hello(FinalRequest(samples=np.empty(0, np.float32), start_s=0.0))


def test_each_utterance_has_its_own_segments_with_times_in_the_stream():
    requests = [
        FinalRequest(samples=NOISE, start_s=at_s, language=code) for code, at_s in (("de", 0), ("fr", 7))
    ]
    found = hello(*requests)
    assert [(segment.language, segment.start_s) for (segment,) in found] == [("de", 0.0), ("fr", 7.0)]


def hello(*requests: FinalRequest, **options: Any) -> list[tuple[Segment, ...]]:
    made = TranscribeOptions(vad=False, hallucination_threshold=None, **options)
    backend = TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS))
    return final_pass(WindowDecoder(backend, TOKENIZER, made), requests, 1)

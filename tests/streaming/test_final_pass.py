"""The final pass: drafts, times, languages and batches, with models that recite fixed tokens."""

from __future__ import annotations

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
from fakes.drafts import measured_controller
from fakes.speech_detector import noise_and_silence
from harken.decoding import DecodeStats, SpeculativeDecoder
from harken.errors import AudioError, OptionError
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
TEXT_TOKENS = tuple(token for token in TOKENS if token < TOKENIZER.eot)
PROMPT = len(TOKENIZER.sot_sequence("en", "transcribe", timestamps=True))


def stats_with_draft(
    draft: tuple[int, ...], *, count: int = 1, batch_size: int = 4, use_draft: bool = True
) -> DecodeStats:
    """Return the statistics of a final pass by a model that decodes every window to `TOKENS`."""
    backend = ScriptedBackend(logits_of_texts([TOKENS] * count, PROMPT, DIMS.n_vocab), 64)
    speculator = SpeculativeDecoder(float)
    speculator.greedy.controller = measured_controller()
    window_decoder = WindowDecoder(backend, TOKENIZER, OPTIONS, speculator if use_draft else None)
    requests = [FinalRequest(samples=NOISE, start_s=0.0, draft_tokens=draft)] * count
    for segments in final_pass(window_decoder, requests, batch_size):
        assert [segment.text for segment in segments] == ["hello there.", "good day"]
    return window_decoder.stats


def test_streamed_text_without_timestamps_saves_decoder_passes():
    """Passes: the prompt, the first segment up to its end, the next up to its end, the last timestamp."""
    stats = stats_with_draft(TEXT_TOKENS)
    assert stats.forwards == 4
    assert stats.sampled_tokens == len(TOKENS)


def test_segments_have_times_in_the_stream():
    window_decoder = WindowDecoder(
        TranscriptBackend(window_text(0, "hello", 10, 10, "there", WINDOW_POSITIONS)), TOKENIZER, OPTIONS
    )
    ((first, second),) = final_pass(window_decoder, [FinalRequest(samples=NOISE, start_s=100.0)], 1)
    assert (first.text, first.start_s, first.end_s) == ("hello", 100.0, 100.2)
    assert (second.start_s, second.end_s, second.seek_s) == (100.2, 100.0 + WINDOW_S, 100.0)
    assert (first.index, second.index) == (0, 1)


@pytest.mark.parametrize(
    ("option", "requested", "language"),
    [(None, "de", "de"), (None, "German", "de"), ("fr", "de", "fr"), (None, None, "en")],
)
def test_language_option_wins_over_the_request_and_that_over_detection(option, requested, language):
    options = TranscribeOptions(language=option, vad=False, hallucination_threshold=None)
    window_decoder = WindowDecoder(
        TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS)), TOKENIZER, options
    )
    ((segment,),) = final_pass(
        window_decoder, [FinalRequest(samples=NOISE, start_s=0.0, language=requested)], 1
    )
    assert segment.language == language


def test_unknown_language_is_refused():
    window_decoder = WindowDecoder(
        TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS)), TOKENIZER, TranscribeOptions(vad=False)
    )
    with pytest.raises(OptionError, match="klingon"):
        final_pass(window_decoder, [FinalRequest(samples=NOISE, start_s=0.0, language="klingon")], 1)


def test_utterance_without_samples_is_refused():
    empty = FinalRequest(samples=np.empty(0, np.float32), start_s=0.0)
    with pytest.raises(AudioError, match="no audio"):
        final_pass(WindowDecoder(TranscriptBackend(window_text(0)), TOKENIZER, OPTIONS), [empty], 4)

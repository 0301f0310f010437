"""Exact finals: drafts, times, languages and how many are decoded together, with models that recite."""

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
from harken.streaming.worker import FinalPass, FinalRequest
from harken.transcribe import TranscribeOptions, WindowDecoder
from tiny_models import DIMS, TOKENIZER

NOISE = noise_and_silence(WINDOW_S)
OPTIONS = TranscribeOptions(
    language="en", vad=False, hallucination_threshold=None, temperatures=(0.0,), suppress_tokens=()
)
LAST = DIMS.n_audio_ctx - 1
SPOKEN = (
    timestamp_token(0),
    *TOKENIZER.encode("hello there."),
    timestamp_token(9),
    timestamp_token(9),
    *TOKENIZER.encode("good day"),
    timestamp_token(LAST),
    TOKENIZER.eot,
)
UNTIMED = tuple(token for token in SPOKEN if token < TOKENIZER.eot)
PROMPT = len(TOKENIZER.sot_sequence("en", "transcribe", timestamps=True))


def drafted(previous: tuple[int, ...], *, many: int = 1, size: int = 4, drafting: bool = True) -> DecodeStats:
    """What it took to decode with a model that says the same of everything."""
    backend = ScriptedBackend(logits_of_texts([SPOKEN] * many, PROMPT, DIMS.n_vocab), 64)
    speculator = SpeculativeDecoder(float)
    speculator.greedy.controller = measured_controller()
    hearing = WindowDecoder(backend, TOKENIZER, OPTIONS, speculator if drafting else None)
    utterances = [FinalRequest(samples=NOISE, start_s=0.0, draft_tokens=previous)] * many
    for segments in FinalPass(hearing, size).transcribe(utterances):
        assert [its.text for its in segments] == ["hello there.", "good day"]
    return hearing.stats


def test_without_a_draft_each_token_is_a_pass():
    assert drafted(()).forwards == len(SPOKEN)
    assert drafted(UNTIMED, drafting=False).forwards == len(SPOKEN)


def test_what_was_heard_before_takes_few_passes_although_it_has_no_times():
    """The prompt, the first segment up to its end, the next up to its end, the last timestamp."""
    stats = drafted(UNTIMED)
    assert stats.forwards == 4
    assert stats.sampled_tokens == len(SPOKEN)


def test_one_that_was_wrong_costs_no_pass():
    assert drafted(tuple(TOKENIZER.encode("XYZ"))).forwards <= len(SPOKEN)


def test_several_utterances_are_decoded_together():
    assert drafted(UNTIMED, many=3).forwards == 4
    assert drafted(UNTIMED, many=3, size=1).forwards == 12


def test_segments_have_the_times_of_the_stream():
    its = WindowDecoder(
        TranscriptBackend(window_text(0, "hello", 10, 10, "there", WINDOW_POSITIONS)), TOKENIZER, OPTIONS
    )
    ((first, second),) = FinalPass(its, 1).transcribe([FinalRequest(samples=NOISE, start_s=100.0)])
    assert (first.text, first.start_s, first.end_s) == ("hello", 100.0, 100.2)
    assert (second.start_s, second.end_s, second.seek_s) == (100.2, 100.0 + WINDOW_S, 100.0)
    assert (first.index, second.index) == (0, 1)


def test_words_have_the_times_of_the_stream():
    options = TranscribeOptions(language="en", vad=False, hallucination_threshold=None, word_timestamps=True)
    its = WindowDecoder(TranscriptBackend(window_text(0, "hello there", WINDOW_POSITIONS)), TOKENIZER, options)
    ((segment,),) = FinalPass(its, 1).transcribe([FinalRequest(samples=NOISE, start_s=100.0)])
    assert [word.text for word in segment.words]
    assert all(100 <= word.start_s <= word.end_s <= 100 + WINDOW_S for word in segment.words)


@pytest.mark.parametrize(
    ("asked", "known", "language"),
    [(None, "de", "de"), (None, "German", "de"), ("fr", "de", "fr"), (None, None, "en")],
)
def test_the_language_is_the_one_asked_for_or_the_one_known_or_detected(asked, known, language):
    options = TranscribeOptions(language=asked, vad=False, hallucination_threshold=None)
    its = WindowDecoder(TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS)), TOKENIZER, options)
    ((segment,),) = FinalPass(its, 1).transcribe([FinalRequest(samples=NOISE, start_s=0.0, language=known)])
    assert segment.language == language


def test_an_unknown_language_is_told():
    its = WindowDecoder(
        TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS)), TOKENIZER, TranscribeOptions(vad=False)
    )
    with pytest.raises(OptionError, match="klingon"):
        FinalPass(its, 1).transcribe([FinalRequest(samples=NOISE, start_s=0.0, language="klingon")])


def test_no_utterances_no_finals():
    assert (
        FinalPass(WindowDecoder(TranscriptBackend(window_text(0)), TOKENIZER, OPTIONS), 4).transcribe([]) == []
    )


def test_an_utterance_has_samples():
    with pytest.raises(AudioError, match="no audio"):
        FinalPass(WindowDecoder(TranscriptBackend(window_text(0)), TOKENIZER, OPTIONS), 4).transcribe(
            [FinalRequest(samples=np.empty(0, np.float32), start_s=0.0)]
        )

"""The final pass: the result of an offline transcription whatever the draft; times, languages, fewer decoder passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparable import comparable
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
from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from harken.api import Recognizer
from harken.contract import Backend, Floats
from harken.errors import AudioError, OptionError
from harken.results import Segment
from harken.streaming.worker import FinalRequest, final_pass
from harken.transcribe import TranscribeOptions, WindowDecoder
from random_transcriptions import options, recordings
from tiny_models import DIMS, TOKENIZER

TIMESTAMP_BEGIN, N_VOCAB = TOKENIZER.timestamp_begin, DIMS.n_vocab


@pytest.fixture(scope="module")
def recognizer(open_backend: Callable[[str], Backend]) -> Recognizer:
    return Recognizer(open_backend("native-int8"), TOKENIZER, "tiny", speech_detector=LoudIsSpeech)


def make_draft(draft_kind: str, segments: tuple[Segment, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """Return draft tokens of a given kind."""
    tokens = [token for segment in segments for token in segment.tokens]
    match draft_kind:
        case "without times":
            return tuple(token for token in tokens if token < TIMESTAMP_BEGIN)
        case "half":
            return tuple(t if rng.random() < 0.7 else int(rng.integers(TOKENIZER.eot)) for t in tokens)
        case "wrong":
            return tuple(rng.integers(N_VOCAB, size=30).tolist())
        case "nothing":
            return ()
    return tuple(tokens)


@settings(max_examples=5)
@given(
    many=st.lists(recordings(), min_size=1, max_size=3),
    draft_kinds=st.lists(
        st.sampled_from(["all", "without times", "half", "wrong", "nothing"]), min_size=3, max_size=3
    ),
    options=options,
    starts_s=st.lists(st.sampled_from([0.0, 3.5, 36_000.0]), min_size=3, max_size=3),
    batch_size=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_final_pass_equals_offline_transcription_for_any_draft(
    recognizer: Recognizer,
    many: list[Floats],
    draft_kinds: list[str],
    options: dict[str, Any],
    starts_s: list[float],
    batch_size: int,
    seed: int,
) -> None:
    made = TranscribeOptions(**options)
    plain = [recognizer.transcribe(samples, made).result().segments for samples in many]
    rng = np.random.default_rng(seed)
    requests = [
        FinalRequest(samples=samples, start_s=start_s, draft_tokens=make_draft(kind, segments, rng))
        for samples, start_s, kind, segments in zip(many, starts_s, draft_kinds, plain, strict=False)
    ]
    for speculator in (eager_decoder(), None):
        window_decoder = WindowDecoder(
            recognizer.backend, TOKENIZER, made, speculator, speech_detector=LoudIsSpeech
        )
        finals = final_pass(window_decoder, requests, batch_size)
        for found, segments, start_s in zip(finals, plain, starts_s, strict=False):
            assert comparable(found, start_s) == comparable(segments)
            assert [segment.index for segment in found] == [*range(len(segments))]


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
    """Passes: the prompt, the first segment up to its end, the next up to its end, the last timestamp."""
    backend = ScriptedBackend(logits_of_texts([TOKENS], PROMPT, DIMS.n_vocab), 64)
    window_decoder = WindowDecoder(backend, TOKENIZER, OPTIONS, eager_decoder())
    draft = tuple(token for token in TOKENS if token < TOKENIZER.eot)
    (segments,) = final_pass(window_decoder, [FinalRequest(samples=NOISE, start_s=0.0, draft_tokens=draft)], 4)
    assert [segment.text for segment in segments] == ["hello there.", "good day"]
    assert window_decoder.stats.forwards == 4
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


def hello(request: FinalRequest, **options: Any) -> list[tuple[Segment, ...]]:
    made = TranscribeOptions(vad=False, hallucination_threshold=None, **options)
    backend = TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS))
    return final_pass(WindowDecoder(backend, TOKENIZER, made), [request], 1)

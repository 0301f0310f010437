"""Transcripts do not depend on the number of windows decoded together: with a tiny random model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.speech_detector import LoudIsSpeech
from harken.api import Recognizer
from harken.contract import Backend, Floats
from harken.results import Transcript
from harken.transcribe import gap_filling
from tiny_models import DIMS, TOKENIZER

WINDOW_SAMPLES = 2 * DIMS.n_audio_ctx * 160


pytestmark = pytest.mark.usefixtures("small_gaps")


@pytest.fixture(scope="module")
def small_gaps() -> Iterator[None]:
    """Take a fifth of a second without words for a gap: a window of the tiny model is half a second long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_filling, "MIN_SPEECH_FRAMES", 20)
        patch.setattr(gap_filling, "WORD_REACH_FRAMES", 5)
        patch.setattr(gap_filling, "NEIGHBOUR_FRAMES", 2)
        yield


@pytest.fixture(scope="module")
def recognizer(open_backend: Callable[[str], Backend]) -> Recognizer:
    return Recognizer(open_backend("onnx-fp32"), TOKENIZER, "tiny", speech_detector=LoudIsSpeech)


def recording(seed: int, windows: list[tuple[float, float]]) -> Floats:
    """Return noise and silence in turns, with the lengths of each pair in windows."""
    rng = np.random.default_rng(seed)
    parts = [
        part
        for noise, silence in windows
        for part in (
            0.2 * rng.standard_normal(round(noise * WINDOW_SAMPLES)),
            np.zeros(round(silence * WINDOW_SAMPLES)),
        )
    ]
    return np.concatenate(parts).astype(np.float32)


lengths = st.tuples(st.sampled_from([0.3, 0.9, 2.5]), st.sampled_from([0.2, 1.0, 4.0]))
recordings = st.builds(recording, st.integers(0, 9), st.lists(lengths, min_size=1, max_size=5))
options = st.fixed_dictionaries(
    {
        "language": st.sampled_from([None, "en"]),
        "multilingual": st.booleans(),
        "temperatures": st.sampled_from([(0.0,), (0.0, 0.7), (1.0,)]),
        "beam_size": st.sampled_from([1, 3]),
        "best_of": st.just(2),
        "timestamps": st.booleans(),
        "condition_on_previous_text": st.booleans(),
        "initial_prompt": st.sampled_from([None, "Ann, Bo"]),
        "fidelity": st.sampled_from(["exact", "fast"]),
        "clip_timestamps": st.sampled_from([(), (), (0.3, 1.2, 1.3)]),
        "vad": st.sampled_from([True, True, False]),
        "vad_min_silence_s": st.just(0.3),
        "vad_speech_pad_s": st.just(0.05),
        "hallucination_threshold": st.none(),
        "logprob_threshold": st.sampled_from([None, -1.0]),
    }
)


@settings(max_examples=5)
@given(many=st.lists(recordings, min_size=2, max_size=4), options=options, batch_size=st.integers(2, 6))
def test_batch_size_does_not_change_the_transcripts_of_several_recordings(
    recognizer: Recognizer, many: list[Floats], options: dict[str, Any], batch_size: int
) -> None:
    alone = [comparable(recognizer.transcribe(samples, **options).result()) for samples in many]
    together = recognizer.transcribe_many(many, **options, batch_size=batch_size)
    assert [comparable(transcription.result()) for transcription in together] == alone
    backwards = recognizer.transcribe_many(many, **options, batch_size=batch_size)[::-1]
    assert [comparable(transcription.result()) for transcription in backwards] == alone[::-1]


def test_gaps_of_these_recordings_are_decoded_again_and_some_stay(recognizer: Recognizer) -> None:
    samples, options = recording(1, [(0.9, 1.0), (2.5, 0.2)]), {"language": "en", "logprob_threshold": None}
    given = {**options, "hallucination_threshold": None, "vad_min_silence_s": 0.3, "vad_speech_pad_s": 0.05}
    filled = recognizer.transcribe(samples, **given)
    plain = recognizer.transcribe(samples, **given, fill_gaps=False)
    assert len(filled.result().segments) > len(plain.result().segments)
    assert filled.stats.windows > plain.stats.windows
    assert filled.result().unwritten


def comparable(transcript: Transcript) -> list[tuple[Any, ...]]:
    """Return the fields that must be equal, with probabilities rounded: their last bits depend on the batch."""
    missing = [(speech.start_s, speech.end_s) for speech in transcript.unwritten]
    return [*missing] + [
        (
            segment.index,
            segment.start_s,
            segment.end_s,
            segment.tokens,
            segment.language,
            round(segment.avg_logprob, 3),
            len(segment.attempts),
        )
        for segment in transcript.segments
    ]

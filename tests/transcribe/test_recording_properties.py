"""Properties of every transcription, shown on a tiny random model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harken.api import Recognizer
from harken.contract import Backend, Floats
from harken.errors import Cancelled
from harken.results import Transcript
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE
from tiny_models import DIMS, TOKENIZER

WINDOW_SAMPLES = 2 * DIMS.n_audio_ctx * 160
# The tiny window has only so many timestamps; the others are beyond it, as none is in a model of 30 s.
BEYOND = range(TOKENIZER.timestamp_begin + DIMS.n_audio_ctx + 1, DIMS.n_vocab)

options = st.fixed_dictionaries(
    {
        "language": st.sampled_from([None, "en"]),
        "temperatures": st.sampled_from([(0.0,), (0.0, 0.7), (1.0,)]),
        "beam_size": st.sampled_from([1, 3]),
        "best_of": st.just(2),
        "timestamps": st.booleans(),
        "condition_on_previous_text": st.booleans(),
        "initial_prompt": st.sampled_from([None, "Ann, Bo"]),
        "suppress_tokens": st.sampled_from([(-1,), (-1, *BEYOND)]),
        "max_initial_timestamp_s": st.sampled_from([0.1, None]),
        "clip_timestamps": st.sampled_from(
            [(), (), (), (0.3,), (0.0, 0.7, 0.7), (0.1, 0.2, 0.3, 1.4), (0.5, 0.6, 0.9, 9.0), (9.0,)]
        ),
        "seed": st.integers(0, 3),
        "vad": st.just(False),
    }
)
recordings = st.builds(
    lambda seed, samples, loud: loud * np.random.default_rng(seed).standard_normal(samples, np.float32),
    st.integers(0, 9),
    st.sampled_from([1, 400, WINDOW_SAMPLES, 2 * WINDOW_SAMPLES + 77, 5 * WINDOW_SAMPLES - 1]),
    st.sampled_from([np.float32(0.1), np.float32(1e-4), np.float32(0)]),
)


@pytest.fixture(scope="module")
def recognizer(open_backend: Callable[[str], Backend]) -> Recognizer:
    return Recognizer(open_backend("onnx-fp32"), TOKENIZER, "tiny")


@settings(max_examples=60)
@given(samples=recordings, options=options)
@example(samples=np.zeros(3 * WINDOW_SAMPLES, np.float32), options={})
@example(samples=np.zeros(160, np.float32), options={})
@example(samples=np.full(1, 0.5, np.float32), options={})
def test_segments_follow_one_another_inside_the_recording(
    recognizer: Recognizer, samples: Floats, options: dict[str, Any]
) -> None:
    told: list[tuple[float, bool]] = []
    transcript = recognizer.transcribe(
        samples, **options, on_progress=lambda done_s, finished: told.append((done_s, finished))
    ).result()
    times = [time for segment in transcript.segments for time in (segment.start_s, segment.end_s)]
    assert times == sorted(times)
    assert all(0 <= time <= transcript.duration_s for time in times)
    assert transcript.duration_s <= len(samples) / SAMPLE_RATE
    assert [segment.index for segment in transcript.segments] == list(range(len(transcript.segments)))
    clips = TranscribeOptions(**options).clips(1000)
    for segment in transcript.segments:
        ends_s = [
            end / 1000 if end is not None else np.inf for start, end in clips if start <= 1000 * segment.seek_s
        ]
        assert segment.seek_s <= segment.start_s
        assert segment.end_s <= max(ends_s)
        assert segment.text.strip()
        assert [attempt.reason is None for attempt in segment.attempts][-1]

    done = [done_s for done_s, _ in told]
    assert done == sorted(done)
    assert [finished for _, finished in told] == [False] * (len(told) - 1) + [True]
    assert done[-1] == transcript.duration_s


def test_sampled_text_depends_on_the_seed_only(recognizer: Recognizer) -> None:
    samples = np.random.default_rng(0).standard_normal(2 * WINDOW_SAMPLES, np.float32)

    def sampled(seed: int) -> Transcript:
        drawn = {"temperatures": (0.8,), "seed": seed, "suppress_tokens": (-1, *BEYOND)}
        return recognizer.transcribe(samples, language="en", vad=False, **drawn).result()

    assert sampled(1) == sampled(1)
    assert len({sampled(seed).text for seed in range(4)}) == 4


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"temperatures": (0.9,), "best_of": 3}])
def test_cancelling_takes_one_decoder_step(recognizer: Recognizer, options: dict[str, Any]) -> None:
    samples = np.random.default_rng(0).standard_normal(3 * WINDOW_SAMPLES, np.float32)
    whole = recognizer.transcribe(samples, language="en", vad=False, **options)
    whole.result()
    for most in (1, 7, whole.stats.sampled_tokens - 1):
        seen: list[Any] = []
        work = recognizer.transcribe(
            samples,
            language="en",
            vad=False,
            on_token=seen.append,
            is_cancelled=lambda most=most, seen=seen: len(seen) == most,
            **options,
        )
        with pytest.raises(Cancelled):
            work.result()
        assert len(seen) == most
        segments = work.so_far().segments
        assert segments == whole.so_far().segments[: len(segments)]

"""Recordings and options of transcription to draw for the tiny model, whose window is half a second long."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fakes.backends import WINDOW_S
from fakes.speech_detector import noise_and_silence
from harken.contract import Floats
from tiny_models import DIMS, TOKENIZER

BEYOND = range(TOKENIZER.timestamp_begin + DIMS.n_audio_ctx + 1, DIMS.n_vocab)
"""Timestamps that lie beyond the tiny window, as none does in a model of 30 s."""

options = st.fixed_dictionaries(
    {
        "language": st.sampled_from([None, "en"]),
        "multilingual": st.booleans(),
        "temperatures": st.sampled_from([(0.0,), (0.0, 0.7), (1.0,)]),
        "beam_size": st.sampled_from([1, 3]),
        "best_of": st.just(2),
        "timestamps": st.booleans(),
        "word_timestamps": st.booleans(),
        "condition_on_previous_text": st.booleans(),
        "initial_prompt": st.sampled_from([None, "Ann, Bo"]),
        "fidelity": st.sampled_from(["exact", "fast"]),
        "suppress_tokens": st.sampled_from([(-1,), (-1, *BEYOND)]),
        "max_initial_timestamp_s": st.sampled_from([0.1, 1.0, None]),
        "seed": st.integers(0, 3),
        "vad": st.sampled_from([True, True, False]),
        "vad_min_silence_s": st.just(0.3),
        "vad_speech_pad_s": st.just(0.05),
        "hallucination_threshold": st.sampled_from([None, None, 0.5]),
        "logprob_threshold": st.sampled_from([None, -1.0]),
    }
)
clip_timestamps = st.sampled_from(
    [(), (), (), (0.3,), (0.0, 0.7, 0.7), (0.3, 1.2, 1.3), (0.5, 0.6, 0.9, 9.0), (9.0,)]
)


@st.composite
def recordings(draw: st.DrawFn) -> Floats:
    """Draw noise and silence in turns, of parts of a window or several, and loud, soft or silent."""
    lengths = st.tuples(st.sampled_from([0.3, 0.9, 2.5]), st.sampled_from([0.2, 1.0, 4.0]))
    windows = [length for pair in draw(st.lists(lengths, min_size=1, max_size=4)) for length in pair]
    noise = noise_and_silence(*(WINDOW_S * length for length in windows), seed=draw(st.integers(0, 9)))
    scale = draw(st.sampled_from([1, 1, 1, 1e-3, 0]))
    return np.float32(scale) * noise[: draw(st.sampled_from([None, None, 1, 400]))]

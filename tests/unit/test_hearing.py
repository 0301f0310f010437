"""Windows that are heard together, and whole recordings with voice activity detection, by a tiny random model."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.backends import WINDOW_POSITIONS, TranscriptBackend, window_text
from fakes.speech_detector import noise_and_silence, split_at
from harken.contract import Backend, Floats
from harken.results import Segment
from harken.transcribe import Callbacks, TranscribeOptions, WindowDecoder, mel_windows, recording
from harken.transcribe.window_decoder import DecodeRequest
from single_recording import SingleRecordingTranscriber
from tiny_models import DIMS, TOKENIZER, make_mel

WINDOW_FRAMES = 2 * DIMS.n_audio_ctx
PROMPT = TOKENIZER.sot_sequence("en")


pytestmark = pytest.mark.usefixtures("amplitude_vad")


@pytest.fixture(scope="module")
def backend(open_backend: Callable[[str], Backend]) -> Backend:
    return open_backend("onnx-fp32")


def job(mel: Floats, seek: int, told: list[Any] | None = None, **changes: Any) -> DecodeRequest:
    its: dict[str, Any] = {
        "mel": mel[None],
        "frames_to_encode": WINDOW_FRAMES,
        "seek": seek,
        "is_first": False,
        "resolve_language": lambda probabilities: "en",
        "build_prompt": lambda language: TOKENIZER.sot_sequence(language),
        "account": lambda stats: None,
        "hooks": Callbacks()
        if told is None
        else Callbacks(on_window_end=lambda start_s, *_: told.append(start_s)),
    }
    return DecodeRequest(**{**its, **changes})


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"temperatures": (0.7,), "best_of": 2}])
def test_windows_of_several_lengths_come_out_in_their_order_and_as_they_do_alone(
    backend: Backend, options: dict[str, Any]
) -> None:
    hearing = WindowDecoder(backend, TOKENIZER, TranscribeOptions(language="en", fidelity="fast", **options))
    told: list[float] = []
    lengths = (WINDOW_FRAMES, 24, WINDOW_FRAMES, 24)
    mels = make_mel()
    jobs = [
        job(mel, 100 * i, told, frames_to_encode=heard, is_first=not i)
        for i, (mel, heard) in enumerate(zip(mels, lengths, strict=True))
    ]
    together = hearing.decode(jobs)
    assert told == [0, 1, 2, 3]
    for its, outcome in zip(jobs, together, strict=True):
        (alone,) = hearing.decode([its])
        assert outcome.decoded.hypothesis.tokens == alone.decoded.hypothesis.tokens
        assert outcome.decoded.hypothesis.avg_logprob == pytest.approx(
            alone.decoded.hypothesis.avg_logprob, abs=1e-4
        )
        assert len(outcome.attempts) == len(alone.attempts)


def test_languages_are_settled_in_the_order_of_the_windows(backend: Backend) -> None:
    hearing = WindowDecoder(backend, TOKENIZER, TranscribeOptions())
    asked: list[tuple[int, str]] = []

    def settling(which: int) -> Callable[[Callable[[], dict[str, float]]], str]:
        def language(probabilities: Callable[[], dict[str, float]]) -> str:
            asked.append((which, next(iter(probabilities()))))
            return "de" if which % 2 else "fr"

        return language

    mels = make_mel()
    jobs = [
        job(mel, i, frames_to_encode=(48, 24)[i % 2], resolve_language=settling(i))
        for i, mel in enumerate(mels)
    ]
    assert [outcome.language for outcome in hearing.decode(jobs)] == ["fr", "de", "fr", "de"]
    assert [which for which, _ in asked[:4]] == [0, 1, 2, 3]
    whole = [next(iter(found)) for found in hearing.detect_languages(mels)]
    assert [code for _, code in asked[:4:2]] == whole[::2]


def test_nothing_to_decode_is_nothing_decoded(backend: Backend) -> None:
    assert WindowDecoder(backend, TOKENIZER, TranscribeOptions()).decode([]) == []


@pytest.mark.parametrize(
    ("sure", "encoded", "kept"), [(True, [24], [True]), (False, [24, WINDOW_FRAMES], [False, True])]
)
def test_only_what_is_doubtful_is_heard_again(sure: bool, encoded: list[int], kept: list[bool]) -> None:
    its = TranscriptBackend(
        window_text(0, "yes", WINDOW_POSITIONS, gap=40.0 if sure else 1.0),
        window_text(0, "yes", WINDOW_POSITIONS),
    )
    hearing = WindowDecoder(
        its, TOKENIZER, TranscribeOptions(language="en", temperatures=(0.0,), fidelity="fast")
    )
    (outcome,) = hearing.decode([job(make_mel(1)[0], 0, frames_to_encode=24)])
    assert [window.shape[-1] for window in its.mels] == encoded
    assert outcome.decoded.text == "yes"
    assert [attempt.reason is None for attempt in outcome.attempts] == kept


parts = st.lists(st.tuples(st.sampled_from([0.2, 0.4, 1.3]), st.sampled_from([0.2, 0.5, 2.0])), max_size=4)
options = st.fixed_dictionaries(
    {
        "resolve_language": st.sampled_from([None, "en"]),
        "multilingual": st.booleans(),
        "condition_on_previous_text": st.booleans(),
        "word_timestamps": st.booleans(),
        "fidelity": st.sampled_from(["exact", "fast"]),
        "timestamps": st.booleans(),
        "hallucination_threshold": st.sampled_from([None, 0.5]),
        "clip_timestamps": st.sampled_from([(), (), (0.0, 0.3, 0.9, 1.6), (0.5,)]),
        "batch_size": st.sampled_from([1, 3]),
        "temperatures": st.just((0.0,)),
        "vad_min_silence_s": st.just(0.3),
        "vad_speech_pad_s": st.just(0.05),
    }
)
EVERYTHING = {"vad_min_silence_s": 0.3, "vad_speech_pad_s": 0.05, "word_timestamps": True, "batch_size": 3}


@settings(max_examples=12)
@given(parts=parts, options=options, points=st.lists(st.floats(0, 1), max_size=6))
@example(parts=[(0.2, 2.0), (1.3, 0.2)], options=EVERYTHING, points=[i / 40 for i in range(40)])
def test_with_voice_activity_nothing_depends_on_how_the_samples_arrive(
    backend: Backend, parts: list[tuple[float, float]], options: dict[str, Any], points: list[float]
) -> None:
    samples = noise_and_silence(0, 0.4, *[length_s for pair in parts for length_s in pair], 0.2)

    def transcribe(its: list[Floats]) -> tuple[list[Segment], Any, Any]:
        form = SingleRecordingTranscriber(backend, TOKENIZER, iter(its), TranscribeOptions(**options))
        return list(form.segments()), form.dropped, form.language

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mel_windows, "LOOK_AHEAD_FRAMES", 60)
        patch.setattr(recording, "FINAL_SILENCE_FRAMES", 10)
        patch.setattr(recording, "ENCODE_BUCKET_FRAMES", 8)
        found, dropped, language = transcribe(split_at(samples, [round(p * len(samples)) for p in points]))
        assert (found, dropped, language) == transcribe([samples])
    speech = [segment.start_s for segment in found] + [segment.end_s for segment in found]
    assert all(0 <= time_s <= len(samples) / 16_000 for time_s in speech)
    for segment in found:
        times = [time for word in segment.words for time in (word.start_s, word.end_s)]
        assert times == sorted(times)


class QuickMel:
    """As `LogMel`, without the work."""

    ceiling = -10.0

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels

    def feed(self, samples: Floats) -> Floats:
        return np.full((self.n_mels, len(samples) // 160), -10, np.float32)

    def flush(self) -> Floats:
        return np.empty((self.n_mels, 0), np.float32)


class Forgetful(TranscriptBackend):
    """A `TranscriptBackend` that does not keep what it was asked."""

    def encode(self, mel: Floats) -> Any:
        self.prompts.clear()
        features = super().encode(mel)
        self.mels[:-1] = [mel[:, :0]] * (len(self.mels) - 1)
        return features


@pytest.mark.slow
def test_an_hour_of_speech_and_silence_takes_the_memory_of_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mel_windows, "LogMel", QuickMel)
    minute = noise_and_silence(0.4, 1.6, 0.4, 27.6, 0.4, 29.6)
    said = window_text(0, "hello", WINDOW_POSITIONS)

    def peak_bytes(minutes: int) -> int:
        blocks = (minute for _ in range(minutes))
        options = TranscribeOptions(language="en", condition_on_previous_text=True)
        form = SingleRecordingTranscriber(Forgetful(said), TOKENIZER, blocks, options)
        tracemalloc.start()
        try:
            assert sum(1 for _ in form.segments()) >= 3 * minutes
            assert form.duration_s == 60 * minutes
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Beside that, only what is known of speech and of what was dropped.
    assert peak_bytes(60) < 1.1 * peak_bytes(10)

"""The window decoder with several windows at a time, and whole recordings with voice activity detection."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.backends import WINDOW_POSITIONS, TranscriptBackend, window_text
from fakes.silent_mel import SilentMel
from fakes.speech_detector import LoudIsSpeech, noise_and_silence, split_at
from harken.contract import Backend, Floats, SparsePositions
from harken.decoding import DecodeStats
from harken.results import Segment
from harken.text import Tokenizer
from harken.transcribe import Callbacks, TranscribeOptions, WindowDecoder, mel_windows, window_decoder
from harken.transcribe.window_decoder import AudioWindow, DecodeRequest, PaddingSample, WindowResult
from single_recording import SingleRecordingTranscriber
from tiny_models import DIMS, TOKENIZER, make_mel

WINDOW_FRAMES = 2 * DIMS.n_audio_ctx
SMALL_SAMPLE = PaddingSample(block=1, period=4, min_dense=0, dense_step=4)
"""A window with 24 frames of audio is encoded in part: the tiny model's windows have 48."""
PROMPT = TOKENIZER.sot_sequence("en")


@pytest.fixture(scope="module")
def backend(open_backend: Callable[[str], Backend]) -> Backend:
    return open_backend("onnx-fp32")


def audio_window(
    mel: Floats, seek: int, content_frames: int = WINDOW_FRAMES, *, is_first: bool = False
) -> AudioWindow:
    return AudioWindow(mel=mel[None], content_frames=content_frames, seek=seek, is_first=is_first)


def decode_windows(
    decoder: WindowDecoder, windows: Sequence[AudioWindow], callbacks: Callbacks | None = None
) -> list[WindowResult]:
    """Decode windows in English, each behind the prompt of its language."""
    requests = [
        DecodeRequest(encoded=encoded, language="en", prompt=PROMPT) for encoded in decoder.encode(windows)
    ]
    results, _ = decoder.decode(requests, [callbacks or Callbacks()] * len(requests))
    return results


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"temperatures": (0.7,), "best_of": 2}])
def test_results_come_in_the_order_of_the_windows_and_equal_those_of_each_alone(
    backend: Backend, options: dict[str, Any]
) -> None:
    decoder = WindowDecoder(
        backend,
        TOKENIZER,
        TranscribeOptions(language="en", fidelity="fast", **options),
        padding=SMALL_SAMPLE,
    )
    ended_s: list[float] = []
    windows = [
        audio_window(mel, 100 * i, content_frames, is_first=not i)
        for i, (mel, content_frames) in enumerate(zip(make_mel(), (WINDOW_FRAMES, 24) * 2, strict=True))
    ]
    together = decode_windows(
        decoder, windows, Callbacks(on_window_end=lambda start_s, *_: ended_s.append(start_s))
    )
    assert ended_s == [0, 1, 2, 3]
    for window, result in zip(windows, together, strict=True):
        (alone,) = decode_windows(decoder, [window])
        assert result.decoded.hypothesis.tokens == alone.decoded.hypothesis.tokens
        assert result.decoded.hypothesis.avg_logprob == pytest.approx(
            alone.decoded.hypothesis.avg_logprob, abs=1e-4
        )
        assert len(result.attempts) == len(alone.attempts)


def test_language_probabilities_belong_to_their_window_whatever_batch_it_is_encoded_in(
    backend: Backend,
) -> None:
    decoder = WindowDecoder(backend, TOKENIZER, TranscribeOptions(fidelity="fast"), padding=SMALL_SAMPLE)
    mels = make_mel()
    encoded = decoder.encode([audio_window(mel, i, (WINDOW_FRAMES, 24)[i % 2]) for i, mel in enumerate(mels)])
    whole = decoder.detect_languages(mels)
    for i, window in enumerate(encoded):
        probabilities = decoder.language_probabilities(window)
        if i % 2:
            (whole_or_part,) = decoder.detect_languages(mels[i : i + 1], decoder.positions_to_encode(24))
        else:
            whole_or_part = whole[i]
        assert probabilities == pytest.approx(whole_or_part, abs=1e-5)


@pytest.mark.parametrize(
    ("multilingual", "sure_layers", "encoded"),
    [(True, DIMS.n_audio_layer + 1, [24, WINDOW_FRAMES]), (True, DIMS.n_audio_layer, [24]), (False, 99, [24])],
)
def test_only_small_multilingual_models_get_the_whole_window_for_lack_of_confidence(
    monkeypatch: pytest.MonkeyPatch, multilingual: bool, sure_layers: int, encoded: list[int]
) -> None:
    monkeypatch.setattr(window_decoder, "MIN_SPARSE_LOGPROB", 1.0)  # above any
    monkeypatch.setattr(window_decoder, "SURE_LAYERS", sure_layers)
    tokenizer = Tokenizer.bytes_only(multilingual=multilingual)
    backend = TranscriptBackend(window_text(0, "yes", WINDOW_POSITIONS))
    decoder = WindowDecoder(
        backend,
        tokenizer,
        TranscribeOptions(language="en", fidelity="fast"),
        padding=SMALL_SAMPLE,
    )
    (result,) = decode_windows(decoder, [audio_window(make_mel(1)[0], 0, 24)])
    assert [mel.shape[-1] for mel in backend.mels] == encoded
    if len(encoded) == 2:
        assert "below 1.0, in the encoded part of the window" in (result.attempts[0].reason or "")


def test_the_cost_of_a_pass_names_the_requests_decoded_in_it(backend: Backend) -> None:
    decoder = WindowDecoder(
        backend,
        TOKENIZER,
        TranscribeOptions(language="en", temperatures=(0.0,)),
        padding=SMALL_SAMPLE,
    )
    windows = [audio_window(mel, i, is_first=i == 1) for i, mel in enumerate(make_mel(3))]
    requests = [
        DecodeRequest(encoded=encoded, language="en", prompt=PROMPT) for encoded in decoder.encode(windows)
    ]
    _, passes = decoder.decode(requests, [Callbacks()] * 3)
    assert [decoded.requests for decoded in passes] == [(0, 2), (1,)]
    assert [decoded.stats.windows for decoded in passes] == [2, 1]
    assert sum((decoded.stats for decoded in passes), DecodeStats()) == decoder.stats


durations = st.lists(st.tuples(st.sampled_from([0.2, 0.4, 1.3]), st.sampled_from([0.2, 0.5, 2.0])), max_size=4)
options = st.fixed_dictionaries(
    {
        "language": st.sampled_from([None, "en"]),
        "multilingual": st.booleans(),
        "condition_on_previous_text": st.booleans(),
        "word_timestamps": st.booleans(),
        "fidelity": st.sampled_from(["exact", "fast"]),
        "timestamps": st.booleans(),
        "hallucination_threshold": st.sampled_from([None, 0.5]),
        "clip_timestamps": st.sampled_from([(), (), (0.0, 0.3, 0.9, 1.6), (0.5,)]),
        "batch_size": st.sampled_from([1, 3]),
        "temperatures": st.just((0.0,)),
        "vad": st.sampled_from([True, True, False]),
        "vad_min_silence_s": st.just(0.3),
        "vad_speech_pad_s": st.just(0.05),
    }
)
EVERYTHING = {"vad_min_silence_s": 0.3, "vad_speech_pad_s": 0.05, "word_timestamps": True, "batch_size": 3}


@settings(max_examples=12)
@given(durations_s=durations, options=options, points=st.lists(st.floats(0, 1), max_size=6))
@example(durations_s=[(0.2, 2.0), (1.3, 0.2)], options=EVERYTHING, points=[i / 40 for i in range(40)])
def test_result_does_not_depend_on_the_sizes_of_the_sample_blocks(
    backend: Backend, durations_s: list[tuple[float, float]], options: dict[str, Any], points: list[float]
) -> None:
    samples = noise_and_silence(0, 0.4, *[length_s for pair in durations_s for length_s in pair], 0.2)

    def transcribe(blocks_of_samples: list[Floats]) -> tuple[list[Segment], Any, Any]:
        transcriber = SingleRecordingTranscriber(
            backend,
            TOKENIZER,
            iter(blocks_of_samples),
            TranscribeOptions(**options),
            speech_detector=LoudIsSpeech,
            padding=SMALL_SAMPLE,
        )
        return list(transcriber.segments()), transcriber.dropped, transcriber.language

    found, dropped, language = transcribe(split_at(samples, [round(p * len(samples)) for p in points]))
    assert (found, dropped, language) == transcribe([samples])
    speech = [segment.start_s for segment in found] + [segment.end_s for segment in found]
    assert all(0 <= time_s <= len(samples) / 16_000 for time_s in speech)
    for segment in found:
        times = [time for word in segment.words for time in (word.start_s, word.end_s)]
        assert times == sorted(times)


class Forgetful(TranscriptBackend):
    """A `TranscriptBackend` that keeps no prompts and no log-mel."""

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> Any:
        self.prompts.clear()
        features = super().encode(mel, positions)
        self.mels[:-1] = [mel[:, :0]] * (len(self.mels) - 1)
        return features


@pytest.mark.slow
def test_memory_of_half_an_hour_equals_that_of_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mel_windows, "LogMel", SilentMel)
    minute = noise_and_silence(0.4, 1.6, 0.4, 27.6, 0.4, 29.6)
    text = window_text(0, "hello", WINDOW_POSITIONS)

    def peak_bytes(minutes: int) -> int:
        blocks = (minute for _ in range(minutes))
        options = TranscribeOptions(language="en", condition_on_previous_text=True)
        transcriber = SingleRecordingTranscriber(
            Forgetful(text), TOKENIZER, blocks, options, speech_detector=LoudIsSpeech
        )
        tracemalloc.start()
        try:
            assert sum(1 for _ in transcriber.segments()) >= 3 * minutes
            assert transcriber.duration_s == 60 * minutes
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Only speech regions and dropped segments may grow.
    assert peak_bytes(30) < 1.1 * peak_bytes(10)

"""Tests of `read_excerpt` and `collect_plot_data`."""

import numpy as np
import pytest

from harken.errors import AudioError, OptionError
from harken.plot import collect_plot_data, read_excerpt
from harken.plot.plot_data import CHUNK_S
from harken.transcribe import TranscribeOptions
from harken.types import HOP_SAMPLES, SAMPLE_RATE
from real_models import EXAMPLE, recognizer

RAMP = np.linspace(-0.5, 0.5, 40 * SAMPLE_RATE, dtype=np.float32)
FRAME_S = HOP_SAMPLES / SAMPLE_RATE


@pytest.mark.parametrize(
    ("start_s", "duration_s", "end_s"),
    [(0, 30, 30), (25, 10, 35), (39, 30, 40), *((at_s, 0.005, at_s + FRAME_S) for at_s in (0, 1, 39.99))],
)
def test_excerpt_has_the_requested_samples_and_is_at_least_a_frame(start_s, duration_s, end_s):
    first, last = (round(second * SAMPLE_RATE) for second in (start_s, end_s))
    assert np.array_equal(read_excerpt(RAMP, start_s, duration_s), RAMP[first:last])


def test_nothing_is_read_after_the_excerpt(monkeypatch):
    def blocks(source):
        yield RAMP
        raise AssertionError("too much is read")

    monkeypatch.setattr("harken.plot.plot_data.stream_audio", blocks)
    assert len(read_excerpt("talk.mp3", 1, 2)) == 2 * SAMPLE_RATE


@pytest.mark.parametrize(
    ("source", "start_s", "error", "reason"),
    [
        (RAMP, 40, OptionError, r"start=40: allowed is a time before the end .*, 40\.00 s"),
        (RAMP[:1], 0, AudioError, "1 samples at 16 kHz are too few"),
        (RAMP[:159], 0, AudioError, "159 samples at 16 kHz are too few"),
        (__file__, 0, AudioError, r"test_plot_data\.py"),
    ],
    ids=["after the end", "a sample", "less than a frame", "no audio"],
)
def test_excerpt_without_a_frame_is_refused(source, start_s, error, reason):
    with pytest.raises(error, match=reason):
        read_excerpt(source, start_s, 1)


@pytest.fixture(scope="module")
def plot_data():
    return collect_plot_data(
        recognizer("int8"), read_excerpt(EXAMPLE, 3.0, 6.0), TranscribeOptions(), title="jfk", start_s=3.0
    )


@pytest.mark.real
class TestCollectPlotData:
    def test_times_are_relative_to_the_recording(self, plot_data):
        assert (plot_data.start_s, plot_data.end_s) == (3.0, 9.0)
        assert plot_data.mel.shape == (80, 600)
        assert len(plot_data.speech_probabilities) == pytest.approx(6 / CHUNK_S, abs=1)
        spans = ((span.start_s, span.end_s) for span in plot_data.text_spans)
        assert all(3.0 <= start_s <= end_s <= 9.0 for start_s, end_s in (*plot_data.speech_regions, *spans))
        assert plot_data.speech_regions

    def test_dtw_path_increases_to_the_end_of_the_window_and_locates_a_word(self, plot_data):
        window = plot_data.windows[0]
        tokens = len(window.tokens)
        assert window.attention.shape == (tokens, 300)
        assert len(window.probabilities) == len(window.token_starts_s) == tokens
        times, rows = zip(*window.dtw_path, strict=True)
        assert list(times) == sorted(times)
        assert list(rows) == sorted(rows)
        assert (times[0], times[-1]) == (3.0, window.end_s)
        for token, start_s, attention in zip(
            window.tokens, window.token_starts_s, window.attention, strict=True
        ):
            assert (start_s is None) == bool(np.isnan(attention).all()), token
        country_s = window.token_starts_s[window.tokens.index(" country")]  # said from about 5.9 to 6.4 s
        assert country_s == pytest.approx(5.9, abs=0.2)

    @pytest.mark.parametrize("precision", ["int8", "fp32"])
    def test_words_are_those_of_a_transcription(self, precision):
        model, samples = recognizer(precision), read_excerpt(EXAMPLE, 0.0, 30.0)
        plotted = collect_plot_data(model, samples, TranscribeOptions(), title="jfk", start_s=0.0)
        transcript = model.transcribe(samples, vad=False, word_timestamps=True).result()
        words = [(word.start_s, word.probability) for each in transcript.segments for word in each.words]
        assert [(span.start_s, span.probability) for span in plotted.text_spans] == words

"""Tests of `read_excerpt` and `collect_plot_data`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harken.errors import AudioError, OptionError
from harken.plot import PlotData, collect_plot_data, read_excerpt
from harken.transcribe import TranscribeOptions
from harken.types import HOP_SAMPLES, SAMPLE_RATE
from real_models import EXAMPLE, recognizer


class TestReadExcerpt:
    RAMP = np.linspace(-0.5, 0.5, 40 * SAMPLE_RATE, dtype=np.float32)

    @pytest.mark.parametrize(
        ("start_s", "duration_s", "expected_s"), [(0, 30, (0, 30)), (25, 10, (25, 35)), (39, 30, (39, 40))]
    )
    def test_excerpt_has_the_requested_samples(
        self, start_s: float, duration_s: float, expected_s: tuple[int, int]
    ) -> None:
        first, last = (second * SAMPLE_RATE for second in expected_s)
        assert np.array_equal(read_excerpt(self.RAMP, start_s, duration_s), self.RAMP[first:last])

    @pytest.mark.parametrize("start_s", [0, 1, 39.99])
    def test_excerpt_is_at_least_a_frame(self, start_s: float) -> None:
        first = round(start_s * SAMPLE_RATE)
        assert np.array_equal(read_excerpt(self.RAMP, start_s, 0.005), self.RAMP[first : first + HOP_SAMPLES])

    def test_nothing_is_read_after_the_excerpt(self) -> None:
        class ReadTooMuch(Exception):
            """Raised if too much is read."""

        def blocks(source: object) -> object:
            yield self.RAMP
            raise ReadTooMuch

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("harken.plot.plot_data.stream_audio", blocks)
            assert len(read_excerpt("talk.mp3", 1, 2)) == 2 * SAMPLE_RATE

    def test_excerpt_after_the_end_is_rejected(self) -> None:
        with pytest.raises(OptionError, match=r"start=40: allowed is a time before the end .*, 40\.00 s"):
            read_excerpt(self.RAMP, 40, 1)

    @pytest.mark.parametrize("samples", [1, 159])
    def test_recording_shorter_than_a_frame_is_rejected(self, samples: int) -> None:
        with pytest.raises(AudioError, match=f"{samples} samples at 16 kHz are too few"):
            read_excerpt(self.RAMP[:samples], 0, 1)

    def test_file_without_audio_is_rejected(self, tmp_path: Path) -> None:
        (tmp_path / "notes.mp3").write_text("Dear diary,")
        with pytest.raises(AudioError, match=r"notes\.mp3"):
            read_excerpt(tmp_path / "notes.mp3", 0, 1)


@pytest.fixture(scope="module")
def plot_data() -> PlotData:
    return collect_plot_data(
        recognizer("int8"), read_excerpt(EXAMPLE, 3.0, 6.0), TranscribeOptions(), title="jfk", start_s=3.0
    )


@pytest.mark.real
class TestCollectPlotData:
    def test_times_are_relative_to_the_recording(self, plot_data: PlotData) -> None:
        assert (plot_data.start_s, plot_data.end_s) == (3.0, 9.0)
        assert plot_data.mel.shape == (80, 600)
        assert len(plot_data.speech_probabilities) == pytest.approx(6 / plot_data.vad_chunk_s, abs=1)
        for start_s, end_s in (
            *plot_data.speech_regions,
            *((span.start_s, span.end_s) for span in plot_data.text_spans),
        ):
            assert 3.0 <= start_s <= end_s <= 9.0
        assert plot_data.speech_regions

    def test_dtw_path_increases_to_the_end_of_the_window(self, plot_data: PlotData) -> None:
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

    def test_dtw_path_locates_a_word(self, plot_data: PlotData) -> None:
        """The word "country" is spoken from about 5.9 to 6.4 s."""
        window = plot_data.windows[0]
        start_s = window.token_starts_s[window.tokens.index(" country")]
        assert start_s == pytest.approx(5.9, abs=0.2)

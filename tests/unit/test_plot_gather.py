"""Gathering a picture: the stretch that was asked for, and what its decoding left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audio_files import tone
from harken.errors import AudioError, OptionError
from harken.plot import PlotData, collect_plot_data, read_excerpt
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, recognizer


class TestStretch:
    RAMP = np.linspace(-0.5, 0.5, 40 * SAMPLE_RATE, dtype=np.float32)

    @pytest.mark.parametrize(
        ("start_s", "duration_s", "expected_s"), [(0, 30, (0, 30)), (25, 10, (25, 35)), (39, 30, (39, 40))]
    )
    def test_samples(self, start_s: float, duration_s: float, expected_s: tuple[int, int]) -> None:
        first, last = (second * SAMPLE_RATE for second in expected_s)
        assert np.array_equal(read_excerpt(self.RAMP, start_s, duration_s), self.RAMP[first:last])

    def test_no_more_is_read_than_is_wanted(self) -> None:
        class Refusing(Exception):
            """Raised where too much is read."""

        pieces = iter([self.RAMP])

        def blocks(source: object) -> object:
            yield next(pieces)
            raise Refusing

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("harken.plot.plot_data.stream_audio", blocks)
            assert len(read_excerpt("talk.mp3", 1, 2)) == 2 * SAMPLE_RATE

    def test_a_stretch_behind_the_end_is_refused(self) -> None:
        with pytest.raises(OptionError, match=r"start=40: allowed is a time before the end .*, 40\.00 s"):
            read_excerpt(self.RAMP, 40, 1)

    def test_what_is_no_audio_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "notes.mp3").write_text("Dear diary,")
        with pytest.raises(AudioError, match=r"notes\.mp3"):
            read_excerpt(tmp_path / "notes.mp3", 0, 1)


@pytest.fixture(scope="module")
def picture() -> PlotData:
    return collect_plot_data(
        recognizer("int8"), read_excerpt(EXAMPLE, 3.0, 6.0), TranscribeOptions(), title="jfk", start_s=3.0
    )


@pytest.mark.real
class TestGather:
    def test_times_are_those_of_the_recording(self, picture: PlotData) -> None:
        assert (picture.start_s, picture.end_s) == (3.0, 9.0)
        assert picture.mel.shape == (80, 600)
        assert len(picture.speech_probabilities) == pytest.approx(6 / picture.vad_chunk_s, abs=1)
        for start_s, end_s in (
            *picture.speech_regions,
            *((mark.start_s, mark.end_s) for mark in picture.text_spans),
        ):
            assert 3.0 <= start_s <= end_s <= 9.0
        assert picture.speech_regions

    def test_what_was_said(self, picture: PlotData) -> None:
        said = " ".join(mark.text for mark in picture.text_spans).lower()
        assert "what your country can do for you" in said
        assert picture.max_attempts >= 1
        assert all(window.attempts[-1].reason is None for window in picture.windows)

    def test_the_path_rises_through_the_text_to_the_end_of_the_window(self, picture: PlotData) -> None:
        window = picture.windows[0]
        tokens = len(window.tokens)
        assert window.attention.shape == (tokens, 300)
        assert len(window.probabilities) == len(window.token_starts_s) == tokens
        times, rows = zip(*window.dtw_path, strict=True)
        assert list(times) == sorted(times)
        assert list(rows) == sorted(rows)
        assert (times[0], times[-1]) == (3.0, window.end_s)
        for token, begin_s, seen in zip(window.tokens, window.token_starts_s, window.attention, strict=True):
            assert (begin_s is None) == bool(np.isnan(seen).all()), token

    def test_the_path_finds_a_word_where_it_is_spoken(self, picture: PlotData) -> None:
        """In the recording "country" is heard from about 5.9 to 6.4 s."""
        window = picture.windows[0]
        begin_s = window.token_starts_s[window.tokens.index(" country")]
        assert begin_s == pytest.approx(5.9, abs=0.2)

    def test_of_no_speech(self) -> None:
        hum = tone(2.0) * 0.001
        quiet = collect_plot_data(
            recognizer("int8"), hum.astype(np.float32), TranscribeOptions(), title="hum", start_s=0.0
        )
        assert quiet.speech_regions == ()
        assert quiet.end_s == 2.0
        assert len(quiet.windows) >= 1

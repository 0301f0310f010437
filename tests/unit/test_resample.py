"""Samples to 16 kHz as they arrive: how they were cut makes no difference, and 16 bits come out as they went in."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from audio_files import AUDIO_FORMATS, tone
from harken.audio import load_audio
from harken.audio.resample import Resampler

Floats = NDArray[np.float32]


def resampled(samples: Floats, rate_hz: int, cut: int) -> Floats:
    resampler = Resampler(rate_hz)
    pushed = [resampler.feed(samples[start : start + cut]) for start in range(0, len(samples), cut)]
    return np.concatenate([*pushed, resampler.flush()])


def test_what_is_right_already_comes_out_bit_for_bit() -> None:
    every = (np.arange(-32768, 32768) / 32768).astype(np.float32)
    assert np.array_equal(resampled(every, 16_000, 1000), every)


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_however_it_was_cut_it_is_what_a_file_gives(
    tmp_path_factory: pytest.TempPathFactory, rate_hz: int
) -> None:
    folder = tmp_path_factory.mktemp("tone")
    kind = AUDIO_FORMATS["wav s16"]
    path = type(kind)(suffix=".wav", codec="pcm_s16le", rate=rate_hz).write(folder / "tone")
    pcm = (np.frombuffer(path.read_bytes()[-4 * rate_hz :], "<i2") / 32768).astype(np.float32)
    assert np.abs(pcm - tone(2, rate_hz)).max() < 1e-3
    expected = load_audio(path)
    for cut in (len(pcm), 371):
        assert np.array_equal(resampled(pcm, rate_hz, cut), expected)


def test_it_holds_back_less_than_a_hundredth_of_a_second() -> None:
    resampler = Resampler(48_000)
    block = tone(0.1, 48_000).astype(np.float32)
    assert 1600 - 160 < len(resampler.feed(block)) < 1600
    assert len(resampler.feed(block)) == 1600
    assert len(resampler.feed(block[:0])) == 0


def test_what_is_too_loud_is_clipped() -> None:
    assert resampled(np.array([2, -2, 0.5], np.float32), 16_000, 3).tolist() == [32767 / 32768, -1, 0.5]

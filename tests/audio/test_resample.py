"""Tests of incremental resampling to 16 kHz: independent of block size, and exact for 16-bit input."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from audio_files import AUDIO_FORMATS, tone
from harken.audio import load_audio
from harken.audio.io import Resampler

Floats = NDArray[np.float32]


def resampled(samples: Floats, rate_hz: int, block_samples: int) -> Floats:
    resampler = Resampler(rate_hz)
    starts = range(0, len(samples), block_samples)
    blocks = [resampler.feed(samples[start : start + block_samples]) for start in starts]
    return np.concatenate([*blocks, resampler.flush()])


def test_16_khz_samples_are_returned_bit_for_bit() -> None:
    every = (np.arange(-32768, 32768) / 32768).astype(np.float32)
    assert np.array_equal(resampled(every, 16_000, 1000), every)


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_blocks_of_any_size_equal_a_decoded_file(
    tmp_path_factory: pytest.TempPathFactory, rate_hz: int
) -> None:
    folder = tmp_path_factory.mktemp("tone")
    kind = AUDIO_FORMATS["wav s16"]
    path = type(kind)(suffix=".wav", codec="pcm_s16le", rate=rate_hz).write(folder / "tone")
    pcm = (np.frombuffer(path.read_bytes()[-4 * rate_hz :], "<i2") / 32768).astype(np.float32)
    assert np.abs(pcm - tone(2, rate_hz)).max() < 1e-3
    expected = load_audio(path)
    for block_samples in (len(pcm), 371):
        assert np.array_equal(resampled(pcm, rate_hz, block_samples), expected)


def test_resampler_delays_less_than_a_hundredth_of_a_second() -> None:
    resampler = Resampler(48_000)
    block = tone(0.1, 48_000).astype(np.float32)
    assert 1600 - 160 < len(resampler.feed(block)) < 1600
    assert len(resampler.feed(block)) == 1600
    assert len(resampler.feed(block[:0])) == 0


def test_samples_out_of_range_are_clipped() -> None:
    assert resampled(np.array([2, -2, 0.5], np.float32), 16_000, 3).tolist() == [32767 / 32768, -1, 0.5]

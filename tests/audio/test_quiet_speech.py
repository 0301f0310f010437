"""Speech detection by level: what is quiet is heard amplified, what is not is heard as it is, noise stays noise."""

from __future__ import annotations

import numpy as np
import pytest

from harken.audio import load_audio
from harken.audio.silero import CHUNK_SAMPLES, SileroDetector
from harken.audio.vad import HOLD_CHUNKS, QUIET_LEVEL, RegionTracker, SpeechDetector, VadOptions
from harken.contract import Floats
from harken.errors import HarkenError
from real_models import EXAMPLE

RATE = 16_000


@pytest.fixture(scope="module")
def speech() -> Floats:
    return load_audio(EXAMPLE)


def detect(samples: Floats, detector_class: type[SpeechDetector | SileroDetector] = SpeechDetector) -> Floats:
    detector = detector_class()
    return np.concatenate([detector.feed(samples), detector.flush()])


def regions(probabilities: Floats, samples: Floats) -> list[tuple[int, int]]:
    tracker = RegionTracker(VadOptions())
    return tracker.feed(probabilities.tolist()) + tracker.flush(len(samples) // 160)


def speech_frames(samples: Floats) -> set[int]:
    """Return the frames of 10 ms in which speech is found."""
    return {frame for start, end in regions(detect(samples), samples) for frame in range(start, end)}


@pytest.fixture(scope="module")
def normally(speech: Floats) -> set[int]:
    """The frames of speech at its normal level."""
    return speech_frames(speech)


def in_16_bits(samples: Floats) -> Floats:
    return np.rint(samples * 32768).astype(np.float32) / np.float32(32768)


def noise(kind: str, peak: float, seconds: int = 20) -> Floats:
    """Return noise of a spectrum that falls with the frequency, or dither as in a silent 16-bit file."""
    random = np.random.default_rng(1)
    drawn = random.standard_normal(seconds * RATE)
    if kind == "dither":
        return np.rint(random.random(len(drawn)) + random.random(len(drawn)) - 1).astype(np.float32) / 32768
    frequencies = np.fft.rfftfreq(len(drawn), 1 / RATE)
    frequencies[0] = frequencies[1]
    exponent = {"white": 0.0, "pink": 0.5, "brown": 1.0}[kind]
    coloured = np.fft.irfft(np.fft.rfft(drawn) / frequencies**exponent)
    return (peak / np.abs(coloured).max() * coloured).astype(np.float32)


@pytest.mark.parametrize("factor", [0.01, 0.003, 0.001])
@pytest.mark.parametrize("as_file", [False, True], ids=["float", "16 bits"])
def test_quiet_speech_is_found(speech: Floats, normally: set[int], factor: float, as_file: bool) -> None:
    quiet = speech * np.float32(factor)
    quiet = in_16_bits(quiet) if as_file else quiet
    found = speech_frames(quiet)
    assert len(found & normally) >= 0.95 * len(normally)  # the rest is at the edges of pauses
    assert min(found) == 0, "the first words are quieter than the rest"


@pytest.mark.parametrize("factor", [1.0, 0.3, 0.1])
def test_speech_at_normal_levels_is_heard_as_it_is(speech: Floats, factor: float) -> None:
    samples = speech * np.float32(factor)
    found, as_it_is = detect(samples), detect(samples, SileroDetector)
    assert regions(found, samples) == regions(as_it_is, samples)
    chunks = np.pad(samples, (0, -len(samples) % CHUNK_SAMPLES)).reshape(-1, CHUNK_SAMPLES)
    loud = np.flatnonzero(np.ptp(chunks, axis=1) / 2 >= QUIET_LEVEL)
    near_loud = {i for first in loud for i in range(first, first + HOLD_CHUNKS + 1) if i < len(chunks)}
    assert len(near_loud) > 0.7 * len(chunks)
    np.testing.assert_array_equal(found[sorted(near_loud)], as_it_is[sorted(near_loud)])


def test_sound_that_is_never_quiet_has_silero_s_probabilities_to_the_bit(speech: Floats) -> None:
    samples = speech + noise("white", 0.1, 11)[: len(speech)]
    np.testing.assert_array_equal(detect(samples), detect(samples, SileroDetector))


@pytest.mark.parametrize("pause_s", [0.2, 0.5, 3.0])
def test_quiet_speaker_is_found_behind_a_loud_one(speech: Floats, normally: set[int], pause_s: float) -> None:
    pause = np.zeros(round(pause_s * RATE), np.float32)
    turn = np.concatenate([speech, pause])
    conversation = np.concatenate([turn, turn * np.float32(0.005), turn])
    found = speech_frames(conversation)
    for start in (0, len(turn) // 160, 2 * len(turn) // 160):
        assert len(found & {start + frame for frame in normally}) >= 0.9 * len(normally)


def test_quiet_speech_is_found_behind_a_click_and_on_a_constant_offset(
    speech: Floats, normally: set[int]
) -> None:
    quiet = speech * np.float32(0.003)
    with_click = quiet.copy()
    with_click[4000] = 0.9
    for samples in (with_click, quiet + np.float32(0.03)):
        assert len(speech_frames(samples) & normally) >= 0.9 * len(normally)


@pytest.mark.parametrize("kind", ["white", "pink", "brown", "dither"])
@pytest.mark.parametrize("peak_db", [-30, -41, -50, -60, -70, -85])
def test_noise_is_not_speech_at_any_level(kind: str, peak_db: int) -> None:
    samples = in_16_bits(noise(kind, 10 ** (peak_db / 20)))
    assert regions(detect(samples), samples) == []


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, 1e-30, 0.009, -0.5, 1.0])
def test_constant_samples_are_silence_with_finite_probabilities(value: float) -> None:
    probabilities = detect(np.full(2 * RATE + 7, value, np.float32))
    assert np.all((probabilities >= 0) & (probabilities < 0.5))


def test_a_recording_of_one_sample_has_one_probability() -> None:
    assert detect(np.full(1, 0.001, np.float32)).shape == (1,)


def test_feed_after_flush_is_refused() -> None:
    detector = SpeechDetector()
    detector.flush()
    with pytest.raises(HarkenError, match="flushed"):
        detector.feed(np.zeros(512, np.float32))

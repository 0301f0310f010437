"""Fuzz tests of audio decoding: damaged recordings end soon, in samples or an `AudioError`."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS, WITH_SIZES
from harken.audio import stream_audio
from harken.errors import AudioError
from harken.types import SAMPLE_RATE

ROUNDS = 30
LONGEST_S = 1000.0  # a header may claim 1000 Hz for 44.1 kHz samples, and mu-law for 24 bits; not more

Damage = Callable[[bytearray, np.random.Generator], None]


def flip_header(data: bytearray, rng: np.random.Generator) -> None:
    """Change bytes of the header, where damage has the largest effect."""
    for position in rng.integers(0, min(len(data), 200), rng.integers(1, 6)):
        data[position] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])


def lie_about_a_size(data: bytearray, rng: np.random.Generator) -> None:
    start = int(rng.integers(0, min(len(data), 200)))
    data[start : start + 8] = rng.choice([b"\xff" * 8, b"\x7f" + b"\xff" * 7])


def flip_tail(data: bytearray, rng: np.random.Generator) -> None:
    for position in rng.integers(max(0, len(data) - 1500), len(data), rng.integers(1, 10)):
        data[position] = rng.integers(256)


def cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[rng.integers(0, len(data)) :]


def drop_slice(data: bytearray, rng: np.random.Generator) -> None:
    start = rng.integers(0, len(data))
    del data[start : start + rng.integers(1, 500)]


def repeat_slice(data: bytearray, rng: np.random.Generator) -> None:
    start = rng.integers(0, len(data))
    data[start:start] = data[start : start + rng.integers(1, 500)] * int(rng.integers(1, 5))


def overwrite_with_noise(data: bytearray, rng: np.random.Generator) -> None:
    start = rng.integers(0, len(data))
    length = min(int(rng.integers(1, 2000)), len(data) - start)
    data[start : start + length] = rng.bytes(length)


DAMAGES: list[Damage] = [
    *(flip_header, lie_about_a_size, flip_tail, cut, drop_slice, repeat_slice, overwrite_with_noise)
]
FORMATS = {
    **{name: AUDIO_FORMATS[name] for name in ("wav s24 stereo", "flac", "mp3", "ogg opus", "mkv video")},
    "mp4": AUDIO_FORMATS["mp4 video, index in front"],
    **WITH_SIZES,
}
SIGNATURES = {
    "nothing": b"",
    "wav": b"RIFF",
    "flac": b"fLaC",
    "ogg": b"OggS",
    "mp3 tag": b"ID3\x04",
    "mp3 frame": b"\xff\xfb\x90\x64",
    "mp4": b"\x00\x00\x00\x20ftypisom",
    "mkv": b"\x1a\x45\xdf\xa3",
}


def is_decoded(data: bytes) -> bool:
    """Decode all samples; return False if an `AudioError` ends it. A hang ends at the time limit of the test."""
    samples, message = 0, None
    try:
        for block in stream_audio(io.BytesIO(data)):
            samples += len(block)
            assert np.abs(block).max() <= 1.0, "louder than full scale, or not finite"
    except AudioError as error:
        message = str(error)
    assert samples < LONGEST_S * SAMPLE_RATE
    assert message or samples
    assert "\n" not in (message or "")
    return message is None


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_recording_ends_in_samples_or_audio_error(name, tmp_path):
    original = FORMATS[name].write(tmp_path / "tone", seconds=1.0).read_bytes()
    rng = np.random.default_rng(20_251_121)
    outcomes = []
    for _ in range(ROUNDS):
        data = bytearray(original)
        for damage in rng.choice(DAMAGES, rng.integers(1, 4)):
            if data:
                damage(data, rng)
        outcomes.append(is_decoded(data))
    assert {True, False} == set(outcomes), "the damage was too light or too heavy to show anything"


@pytest.mark.slow
@pytest.mark.parametrize("format", SIGNATURES)
def test_noise_after_a_known_signature_ends_in_samples_or_audio_error(format):
    rng = np.random.default_rng(9)
    for _ in range(25):
        is_decoded(SIGNATURES[format] + rng.bytes(int(rng.integers(0, 20_000))))

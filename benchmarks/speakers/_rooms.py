"""Rooms: how a voice sounds at a distance, and noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from harken.contract import Floats

SAMPLE_RATE = 16_000


def reverberate(
    samples: Floats, distance_m: float, decay_s: float, volume_m3: float, rng: np.random.Generator
) -> Floats:
    """Return a voice as a microphone at a distance hears it; the direct sound keeps its time.

    The impulse response is the direct sound and behind it noise that decays by 60 dB in `decay_s`. Their energies are
    equal at the critical distance of the room, ``0.057 * sqrt(volume / decay)`` in metres; the direct sound has the
    level that it would have at 1 m from the microphone divided by the distance.
    """
    import numpy as np

    tail = rng.standard_normal(round(decay_s * SAMPLE_RATE))
    tail *= 10 ** (-3 * np.arange(len(tail)) / len(tail))
    tail[: round(0.0025 * SAMPLE_RATE)] = 0.0  # no wall is nearer than half a metre or so
    critical_m = 0.057 * np.sqrt(volume_m3 / decay_s)
    tail /= np.sqrt(np.sum(tail**2)) * critical_m
    tail[0] = 1 / distance_m
    size = len(samples) + len(tail) - 1
    length = 1 << (size - 1).bit_length()
    heard = np.fft.irfft(np.fft.rfft(samples, length) * np.fft.rfft(tail, length), length)[:size]
    return heard.astype(np.float32)


def make_noise(size: int, slope: float, rng: np.random.Generator) -> Floats:
    """Return noise of level 1 whose power falls with frequency to the power of `slope`: 0 is white, 2 is brown."""
    import numpy as np

    spectrum = np.fft.rfft(rng.standard_normal(size))
    frequencies = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE), 50.0)
    noise = np.fft.irfft(spectrum * frequencies ** (-slope / 2), size)
    return (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)

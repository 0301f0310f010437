"""Raw audio of clients to samples: integers, floats, mu-law and A-law at any rate, cut into messages anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.audio.resample import Resampler
from harken.contract import Floats
from harken.errors import AudioError, OptionError

RATES_HZ = range(8_000, 48_001)
CHANNELS = (1, 2)


def _mu_law_levels() -> NDArray[np.int16]:
    """Return the level of each byte of G.711 mu-law."""
    code = ~np.arange(256, dtype=np.uint8)
    magnitude = ((((code & 0x0F).astype(np.int32) << 3) + 0x84) << ((code & 0x70) >> 4)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _a_law_levels() -> NDArray[np.int16]:
    """Return the level of each byte of G.711 A-law."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    mantissa, exponent = ((code & 0x0F).astype(np.int32) << 4) + 8, ((code & 0x70) >> 4).astype(np.int32)
    magnitude = np.where(exponent, (mantissa + 0x100) << np.maximum(exponent - 1, 0), mantissa)
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


_MU_LAW_LEVELS, _A_LAW_LEVELS = _mu_law_levels(), _a_law_levels()


def _finite(samples: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(samples).all():
        raise AudioError("a sample is nan or infinite; allowed are finite samples")
    return samples


# The type of a sample in a message, and what makes samples of the resampler's types of it.
_ENCODINGS: dict[str, tuple[np.dtype[Any], Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "s16le": (np.dtype("<i2"), lambda samples: samples.astype(np.int16)),
    "s32le": (np.dtype("<i4"), lambda samples: samples.astype(np.int32)),
    "f32le": (np.dtype("<f4"), lambda samples: _finite(samples.astype(np.float32))),
    "mulaw": (np.dtype("u1"), lambda codes: _MU_LAW_LEVELS[codes]),
    "alaw": (np.dtype("u1"), lambda codes: _A_LAW_LEVELS[codes]),
}
ENCODINGS = tuple(_ENCODINGS)


class PcmDecoder:
    """A decoder of one stream of raw audio to float32 at 16 kHz.

    The samples do not depend on how the bytes were cut into messages; a cut inside a sample is allowed.

    Parameters
    ----------
    encoding : str
        One of `ENCODINGS`.
    rate_hz : int
        8000 to 48000.
    channels : int
        1, or 2 in turn, which are mixed.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    def __init__(self, encoding: str, rate_hz: int, channels: int = 1) -> None:
        if encoding not in _ENCODINGS:
            raise OptionError("encoding", encoding, ", ".join(ENCODINGS))
        if rate_hz not in RATES_HZ:
            raise OptionError("rate", rate_hz, f"{RATES_HZ[0]} to {RATES_HZ[-1]} Hz")
        if channels not in CHANNELS:
            raise OptionError("channels", channels, " or ".join(map(str, CHANNELS)))
        self._type, self._to_levels = _ENCODINGS[encoding]
        self._frame_bytes = self._type.itemsize * channels
        self.bytes_per_s = self._frame_bytes * rate_hz
        levels = self._to_levels(np.zeros(0, self._type))
        self._resampler = Resampler(rate_hz, channels, levels.dtype)
        self._rest = b""

    def feed(self, data: bytes | memoryview) -> Floats:
        """Take bytes and return the samples that are ready.

        Raises
        ------
        AudioError
            If a float is not finite.
        """
        whole = b"".join((self._rest, data))
        n_bytes = len(whole) // self._frame_bytes * self._frame_bytes
        self._rest = whole[n_bytes:]
        return self._resampler.feed(self._to_levels(np.frombuffer(whole[:n_bytes], self._type)))

    def flush(self) -> Floats:
        """Return the samples that waited for later ones, without a sample that was cut; what comes next begins anew."""
        self._rest = b""
        return self._resampler.flush()

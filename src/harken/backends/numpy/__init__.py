"""The reference backend: Whisper in plain numpy, simple rather than fast."""

from harken.backends.numpy.backend import NumpyBackend

__all__ = ["NumpyBackend"]

"""The oracle: Whisper in plain numpy, to be read and to be trusted, not to be fast."""

from harken.backends.numpy.backend import NumpyBackend

__all__ = ["NumpyBackend"]

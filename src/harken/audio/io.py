"""Samples from anywhere: files, standard input, file objects and arrays, as a stream in constant memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from harken.audio.container import NOT_FINITE, open_audio
from harken.errors import AudioError
from harken.types import SAMPLE_RATE, WINDOW_SAMPLES

AudioSource = str | os.PathLike[str] | BinaryIO | NDArray[Any]
"""A path, ``"-"`` for standard input, a binary file object (a pipe too), or samples at 16 kHz: an array of
shape (samples,), float32 or float64 in [-1, 1], or int16."""


def stream_audio(source: AudioSource, *, block_samples: int = WINDOW_SAMPLES) -> Iterator[NDArray[np.float32]]:
    """Decode a recording piece by piece; memory does not grow with its length.

    Any container and codec of FFmpeg is read, the first audio stream of a video too; channels are mixed to one
    and resampled. 16 kHz mono 16-bit recordings come out exactly, as ``int16 / 32768``. A few damaged packets
    are passed over. A recording that breaks off yields all that was decoded before the error is raised.

    Parameters
    ----------
    source : AudioSource
        What to read. A file object is read from where it stands and is left open.
    block_samples : int
        Least length of every block but the last; a block is longer by about a second at most, or by as much again
        where that is less.

    Yields
    ------
    ndarray of shape (samples,), float32, 16 kHz mono, in [-1, 1)
        At least one block, or an error; arrays given as float keep their values.

    Raises
    ------
    AudioNotFound
        If there is no such file.
    AudioError
        If the source cannot be read as audio, breaks off, or has a sample that is not finite. One line that
        names the file (``<stdin>`` for standard input), the second where it is known, and the reason.
    """
    if isinstance(source, np.ndarray):
        yield from _array_blocks(source, block_samples)
        return
    with open_audio(source) as recording:
        for pcm in _join_chunks(recording.decode_pcm(min(1.0, block_samples / SAMPLE_RATE)), block_samples):
            yield _to_float(pcm)


def load_audio(source: AudioSource) -> NDArray[np.float32]:
    """Decode a whole recording into one array.

    Parameters
    ----------
    source : AudioSource
        As in `stream`.

    Returns
    -------
    ndarray of shape (samples,), float32, 16 kHz mono

    Raises
    ------
    AudioNotFound, AudioError
        As in `stream`; of a recording that breaks off nothing is returned.
    """
    return np.concatenate(list(stream_audio(source)))


def audio_duration(source: AudioSource) -> float | None:
    """Seconds of a recording by its header, for a progress bar; no sound is decoded.

    Parameters
    ----------
    source : AudioSource
        As in `stream`. Nothing is taken from standard input or from a file object.

    Returns
    -------
    float or None
        None where only reading it all would tell.

    Raises
    ------
    AudioNotFound, AudioError
        If the file cannot be opened as audio.
    """
    if isinstance(source, np.ndarray):
        return len(source) / SAMPLE_RATE
    if source == "-" or not isinstance(source, str | os.PathLike):
        return None
    with open_audio(source) as recording:
        return recording.duration_s


def _array_blocks(samples: NDArray[Any], block_samples: int) -> Iterator[NDArray[np.float32]]:
    if samples.ndim != 1 or samples.dtype not in (np.float32, np.float64, np.int16):
        raise AudioError(
            f"<array>: shape {samples.shape} of {samples.dtype}; "
            "allowed is one channel at 16 kHz, shape (samples,) of float32, float64 or int16"
        )
    if not len(samples):
        raise AudioError("<array>: holds no audio samples")
    for start in range(0, len(samples), block_samples):
        block = _to_float(samples[start : start + block_samples])
        finite = np.isfinite(block)
        if not finite.all():
            at_s = (start + int(np.argmin(finite))) / SAMPLE_RATE
            raise AudioError(f"<array>: at {at_s:.2f} s: {NOT_FINITE}")
        yield block


def _join_chunks(chunks: Iterator[NDArray[np.int16]], block_samples: int) -> Iterator[NDArray[np.int16]]:
    """Pieces put together to at least `block_samples`; what was collected comes out before an error does."""
    failure: AudioError | None = None
    pending: list[NDArray[np.int16]] = []
    try:
        for chunk in chunks:
            pending.append(chunk)
            if sum(map(len, pending)) >= block_samples:
                yield np.concatenate(pending)
                pending = []
    except AudioError as error:
        failure = error
    if pending:
        yield np.concatenate(pending)
    if failure:
        raise failure


def _to_float(samples: NDArray[Any]) -> NDArray[np.float32]:
    """int16 scaled to [-1, 1); floats as they are."""
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / np.float32(32768.0)
    with np.errstate(over="ignore"):  # what float32 cannot hold turns infinite and is reported as such
        return samples.astype(np.float32, copy=False)

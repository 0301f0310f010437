"""Reading of audio as a stream in constant memory: files, standard input, file objects and arrays, at any rate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harken.audio.container import (
    LOUDEST,
    NOT_FINITE,
    FileSource,
    another_scale,
    mono_resampler,
    open_audio,
    shared_views,
    without_cancellation,
)
from harken.errors import AudioError, OptionError
from harken.types import SAMPLE_RATE, WINDOW_SAMPLES

if TYPE_CHECKING:
    from av import AudioFrame


AudioSource = FileSource | NDArray[Any]
"""A path, ``"-"`` for standard input, a binary file object (a pipe too), or samples at 16 kHz: an array of
shape (samples,), float32 or float64 of a level up to 8, or int16."""

MAX_CHANNELS = 16
"""Most channels that are read apart, each of which is a recording of its own."""


def stream_audio(source: AudioSource, *, block_samples: int = WINDOW_SAMPLES) -> Iterator[NDArray[np.float32]]:
    """Decode a recording block by block, in constant memory.

    Any container and codec of FFmpeg is read, including the first audio stream of a video; channels are mixed down and
    resampled: all with the same weight, unless the file says where in the room each belongs. Of two that nearly cancel
    each other in a block, the first is taken. Where the sound of an MP4 or Matroska file begins after the video or has
    a hole, there is silence, as in a player. 16 kHz mono 16-bit recordings are returned exactly, as ``int16 / 32768``.
    Damaged packets are skipped. Of a truncated recording, all decoded samples are yielded before the error is raised; a
    cut is noticed if the format declares a length (WAV, AIFF, FLAC, MP4, WMA, and MP3, WebM and Matroska unless live)
    or has pages (Ogg).

    Parameters
    ----------
    source : AudioSource
        The recording. A file object is read from its current position and is left open.
    block_samples : int
        Minimum length of every block but the last. A block is at most about one second, or another
        `block_samples` if that is less, longer than this.

    Yields
    ------
    ndarray of shape (samples,), float32, 16 kHz mono
        At least one block, or an error. Samples of a file are in [-1, 1): floats beyond that are clipped. Those of an
        array are as they were given, up to 8 in size; a few wild ones beyond that become 1 or -1.

    Raises
    ------
    AudioNotFound
        If there is no such file.
    AudioError
        If the source cannot be read as audio, is truncated, has a sample that is not finite, or floats that are
        obviously in another scale: more than 1 % of a block, and 16 samples, are beyond 8. The message is one line that
        names the file (``<stdin>`` for standard input), the time if known, and the reason.
    OptionError
        If `block_samples` is below 1.
    """
    if block_samples < 1:
        raise OptionError("block_samples", block_samples, "an integer of at least 1")
    if isinstance(source, np.ndarray):
        yield from _array_blocks(source, block_samples)
    else:
        yield from _file_blocks(source, block_samples)


def stream_channels(source: AudioSource) -> list[Iterator[NDArray[np.float32]]]:
    """Return the blocks of each channel of a recording, to be read in any order.

    Parameters
    ----------
    source : AudioSource
        As in `stream_audio`, or an array of shape (samples, channels). A pipe is first read to its end into a
        temporary file.

    Raises
    ------
    AudioNotFound, AudioError
        As in `stream_audio`, or if there are more than `MAX_CHANNELS`.
    """
    if isinstance(source, np.ndarray):
        samples = np.asarray(source)
        columns = [*samples.T] if samples.ndim == 2 else [samples]
        _check_channels("<array>", len(columns))
        return [stream_audio(column) for column in columns]
    views = shared_views(source)
    with open_audio(next(views)) as recording:
        count = recording.count_channels()
        _check_channels(recording.name, count)
    return [_channel_blocks(views, next(views), channel) for channel in range(count)]


def _check_channels(name: str, count: int) -> None:
    if not 1 <= count <= MAX_CHANNELS:
        raise AudioError(f"{name}: has {count} channels; allowed apart are 1 to {MAX_CHANNELS}")


def _channel_blocks(
    views: Iterator[FileSource], view: FileSource, channel: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the blocks of a channel, and keep what its view is a part of until then."""
    yield from _file_blocks(view, WINDOW_SAMPLES, channel)


def load_audio(source: AudioSource) -> NDArray[np.float32]:
    """Decode a whole recording into one array.

    Parameters
    ----------
    source : AudioSource
        As in `stream_audio`.

    Returns
    -------
    ndarray of shape (samples,), float32, 16 kHz mono

    Raises
    ------
    AudioNotFound, AudioError
        As in `stream_audio`; nothing is returned of a truncated recording.
    """
    return np.concatenate(list(stream_audio(source)))


def audio_duration(source: AudioSource) -> float | None:
    """Return the duration of a recording according to its header; no audio is decoded.

    Parameters
    ----------
    source : AudioSource
        As in `stream_audio`. Nothing is read from standard input or from a file object.

    Returns
    -------
    float or None
        Seconds; None if only decoding the whole recording could tell.

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


def _file_blocks(
    source: FileSource, block_samples: int, channel: int | None = None
) -> Iterator[NDArray[np.float32]]:
    """Yield the blocks of a recording, of all channels together or of one of them."""
    with open_audio(source) as recording:
        chunks = recording.decode_pcm(min(1.0, block_samples / SAMPLE_RATE), channel)
        for pcm in _join_chunks(chunks, block_samples):
            yield _to_float(pcm)


def _array_blocks(samples: NDArray[Any], block_samples: int) -> Iterator[NDArray[np.float32]]:
    samples = np.asarray(samples)  # a subclass, such as a masked array, has other methods
    if samples.ndim != 1 or samples.dtype not in (np.float32, np.float64, np.int16):
        raise AudioError(
            f"<array>: shape {samples.shape} of {samples.dtype}; "
            "allowed is one channel at 16 kHz, shape (samples,) of float32, float64 or int16"
        )
    if not len(samples):
        raise AudioError("<array>: holds no audio samples")
    for start in range(0, len(samples), block_samples):
        block = samples[start : start + block_samples]
        if block.dtype == np.int16:
            yield _to_float(block)
        else:
            yield from checked_floats(block, start)


def checked_floats(
    block: NDArray[Any], start: int, name: str = "<array>", rate_hz: int = SAMPLE_RATE
) -> Iterator[NDArray[np.float32]]:
    """Yield floats up to the first that is not finite, a few wild ones as 1 or -1; refuse what is in another scale.

    An `AudioError` gives the name of their source, and the time of a sample, where they begin at one with a number.
    """
    low, high = float(block.min(initial=0)), float(block.max(initial=0))  # NaN if a sample is
    if low >= -LOUDEST and high <= LOUDEST:
        yield _to_float(block)
        return
    finite = np.isfinite(block)
    if not finite.all():
        if n_finite := int(np.argmin(finite)):
            yield from checked_floats(block[:n_finite], start, name, rate_hz)
        raise AudioError(f"{name}: at {(start + n_finite) / rate_hz:.2f} s: {NOT_FINITE}")
    wild = (block > LOUDEST) | (block < -LOUDEST)
    if reason := another_scale(block):
        raise AudioError(f"{name}: at {(start + int(np.argmax(wild))) / rate_hz:.2f} s: {reason}")
    yield _to_float(np.where(wild, np.sign(block), block))


def _join_chunks(chunks: Iterator[NDArray[np.int16]], block_samples: int) -> Iterator[NDArray[np.int16]]:
    """Join chunks to at least `block_samples`; pending samples are yielded before an error is raised."""
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
    """Scale int16 to [-1, 1); convert floats to float32."""
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / np.float32(32768.0)
    return samples.astype(np.float32, copy=False)


_FORMATS = {np.dtype(np.int16): "s16", np.dtype(np.int32): "s32", np.dtype(np.float32): "flt"}
_LAYOUTS = {1: "mono", 2: "stereo"}


class Resampler:
    """Incremental resampler to mono 16 kHz; bit-equal to `harken.audio.stream_audio` for any block size.

    Parameters
    ----------
    rate_hz : int
        Sampling rate of the input. At 16 kHz, 16-bit samples are returned bit for bit.
    channels : int
        1 or 2; two are mixed.
    dtype : dtype
        int16, int32, or float32 in [-1, 1]; values outside are clipped.
    """

    def __init__(self, rate_hz: int, channels: int = 1, dtype: Any = np.float32) -> None:
        self._rate_hz, self._layout, self._format = rate_hz, _LAYOUTS[channels], _FORMATS[np.dtype(dtype)]
        self._resampler = mono_resampler()

    def feed(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """Resample the next samples.

        Parameters
        ----------
        samples : ndarray of shape (samples * channels,)
            Those of two channels in turn.

        Returns
        -------
        ndarray of shape (samples at 16 kHz,), float32
            All that can be computed so far; the filter looks ahead by up to a few milliseconds.
        """
        import av

        if not len(samples):
            return np.zeros(0, np.float32)
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples)[None], format=self._format, layout=self._layout
        )
        frame.sample_rate = self._rate_hz
        return self._resample(without_cancellation(frame))

    def flush(self) -> NDArray[np.float32]:
        """Return the samples that the filter still holds; what is fed next is another stream."""
        rest = self._resample(None)
        self._resampler = mono_resampler()
        return rest

    def _resample(self, frame: AudioFrame | None) -> NDArray[np.float32]:
        blocks = [block.to_ndarray()[0] for block in self._resampler.resample(frame)]
        return _to_float(np.concatenate([np.zeros(0, np.int16), *blocks]))

"""Decoding of one recording with FFmpeg (PyAV): any container and codec to mono 16 kHz PCM, in a single pass."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, groupby, repeat
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from harken.audio.ffmpeg_input import FFmpegInput
from harken.audio.truncation import cut_short_reason
from harken.errors import AudioError, AudioNotFound, on_one_line
from harken.types import SAMPLE_RATE

if TYPE_CHECKING:
    from av import AudioFrame, AudioLayout, AudioResampler, AudioStream, Packet
    from av.container import InputContainer

FileSource = str | os.PathLike[str] | IO[bytes]
ALLOWED_SOURCES = "allowed is an audio or video file with sound"
NOT_FINITE = "a sample is nan or infinite; allowed are finite samples"
# Mixers overshoot full scale by a few decibels, a wrong gain by up to 18 dB, and samples of mean 0 and variance 1 have
# peaks about as high; the features do not depend on the level. A block in another scale (16-bit values as floats) has
# most of its speech far beyond that, a damaged one a few wild samples.
LOUDEST = 8.0
_MAX_WILD_SHARE = 0.01
_MAX_WILD_SAMPLES = 16

_ALLOWED_RATES_HZ = range(1_000, 768_001)
# The headers of these formats count the samples; other formats estimate a duration or have none.
_EXACT_DURATION_FORMATS = ("mov", "flac", "tta", "wv")
# In these formats a video's sound may begin late or have holes; the time stamps of others are often wrong.
_TIMED_FORMATS = ("mov", "matroska")
_LEAST_HOLE_S, _LONGEST_HOLE_S = 0.1, 3600.0  # more than rounding and codec delays; more is a wrong time stamp
_NO_OTHER_PROTOCOLS = {"protocol_whitelist": "none"}  # a disguised playlist must not open other files or URLs
_TAGGABLE_FORMATS = ("flac", "tta", "wv")
_ROUNDING_S = 1e-6
_MAX_MISSING_S = 1.0  # far above any codec delay or padding
# Of the energy of two channels; below, what a lossy codec leaves of their sum is mostly its own noise.
_LEAST_KEPT_ENERGY = 0.01
_PLANAR_DTYPES = {"u8p": np.uint8, "s16p": np.int16, "s32p": np.int32, "fltp": np.float32, "dblp": np.float64}


class AudioDecoder:
    """Decoder of a container's first audio stream to mono 16 kHz 16-bit PCM.

    The PCM has 16 bits because the reference (openai-whisper, `audio.py`, `load_audio`) decodes to s16le. 16 kHz mono
    16-bit input is returned bit for bit; all other input passes the same resampler, rounding and clipping.
    """

    def __init__(self, name: str, file: FFmpegInput, container: InputContainer) -> None:
        streams = container.streams.audio
        if not streams:
            kinds = ", ".join(sorted({str(stream.type) for stream in container.streams})) or "nothing"
            raise AudioError(f"{name}: has no sound, only {kinds}; {ALLOWED_SOURCES}")
        self.name = name
        self._file = file
        self._container = container
        self._stream: AudioStream = streams[0]
        self._has_times = container.format.name.startswith(_TIMED_FORMATS)
        self._position_s = 0.0  # of what was decoded
        self._holes_s = 0.0
        # What of the holes the duration of a header does not have, or has as sound: before it, and damaged packets.
        self._late_s = self._damaged_s = 0.0
        self._stream_error: str | None = None
        self._decode_error: str | None = None
        if self._stream.codec_context is None:
            raise AudioError(f"{name}: FFmpeg has no decoder for its sound; {ALLOWED_SOURCES}")
        for other in container.streams:
            if other is not self._stream and hasattr(other, "discard"):
                # Newer PyAV: video packets are not read.
                other.discard = type(other.discard).all

    @property
    def duration_s(self) -> float | None:
        """Duration in seconds according to the header, None if it has none."""
        if self._stream.duration is not None and self._stream.time_base is not None:
            return float(self._stream.duration * self._stream.time_base)
        return None if self._container.duration is None else self._container.duration / 1e6

    def count_channels(self) -> int:
        """Decode the first samples, and return how many channels they have; a header may tell another number."""
        first = next(self._frames(), None)
        return len(first.layout.channels) if first else 1

    def decode_pcm(self, chunk_s: float = 1.0, channel: int | None = None) -> Iterator[NDArray[np.int16]]:
        """Decode blocks of about `chunk_s` seconds of all channels together, or of one of them.

        An error of the recording is raised after the last good block.
        """
        n_decoded = n_silent = 0
        try:
            for (*_, holes_s), frames in groupby(
                self._frames(),
                lambda frame: (frame.format.name, frame.layout.name, frame.sample_rate, self._holes_s),
            ):
                while n_left := round(holes_s * SAMPLE_RATE) - n_silent:
                    silence = np.zeros(min(n_left, round(chunk_s * SAMPLE_RATE)), np.int16)
                    n_silent += len(silence)
                    yield silence
                for chunk in _resample_to_mono(frames, chunk_s, channel):
                    n_decoded += len(chunk)
                    yield chunk
        except AudioError:
            raise
        except Exception as error:  # PyAV raises FFmpegError, ValueError, RuntimeError and more
            raise AudioError(f"{self._location()}: cannot be made mono 16 kHz: {_reason(error)}") from error
        if not n_decoded:
            raise AudioError(f"{self.name}: {self._no_audio_reason()}")
        if self._stream_error and not self._has_all_counted_samples():
            raise AudioError(f"{self._location()}: {self._stream_error}")
        exact_duration_s = self._exact_duration_s()
        duration_s = self._position_s + self._holes_s - self._late_s - self._damaged_s
        if exact_duration_s - duration_s > _MAX_MISSING_S:
            raise AudioError(
                f"{self.name}: only {duration_s:.2f} s of the {exact_duration_s:.2f} s in its header "
                "could be decoded; the file is cut short or damaged"
            )
        if cut_short := cut_short_reason(self._container.format.name, self._file, self._position_s):
            raise AudioError(
                f"{self.name}: only {self._position_s:.2f} s could be decoded; the file is cut short ({cut_short})"
            )

    def _frames(self) -> Iterator[AudioFrame]:
        """Decode frames up to the first sample that is not finite, or the first frame in another scale."""
        verbatim_floats = self._stream.codec_context.name.startswith(("pcm_f", "wavpack"))
        for frame in chain.from_iterable(map(self._decode, self._packets())):
            if frame.sample_rate not in _ALLOWED_RATES_HZ:
                allowed = f"{_ALLOWED_RATES_HZ[0]} to {_ALLOWED_RATES_HZ[-1]} Hz"
                raise AudioError(
                    f"{self._location()}: sample rate {frame.sample_rate} Hz; allowed is {allowed}"
                )
            self._holes_s += self._hole_s(frame)
            if not self._position_s:
                self._late_s = self._holes_s
            n_valid, reason = _check_samples(frame) if verbatim_floats else (frame.samples, None)
            self._position_s += n_valid / frame.sample_rate
            if reason:
                self._stream_error = reason
                return
            frame.pts = None  # the resampler would reject timestamps that jump
            yield frame

    def _hole_s(self, frame: AudioFrame) -> float:
        """Return how long there is no sound before a frame, which a player fills with silence."""
        start = self._container.start_time  # of the video, too, in microseconds
        if frame.pts is None or start is None or not self._has_times:
            return 0.0
        hole_s = float(frame.pts * frame.time_base) - start / 1e6 - self._position_s - self._holes_s
        return hole_s if _LEAST_HOLE_S < hole_s < _LONGEST_HOLE_S else 0.0

    def _packets(self) -> Iterator[Packet]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                with self._file.reraise_read_errors():
                    packet = next(packets, None)
            except Exception as error:
                self._stream_error = f"the file is cut short or damaged ({_reason(error)})"
                return
            if packet is None:
                return
            yield packet

    def _decode(self, packet: Packet) -> list[AudioFrame]:
        """Decode a packet; like ffmpeg, skip one that cannot be decoded."""
        try:
            frames: list[AudioFrame] = packet.decode()
        except Exception as error:
            self._decode_error = f"nothing in it can be decoded ({_reason(error)})"
            self._damaged_s += float((packet.duration or 0) * packet.time_base)
            return []
        return frames

    def _no_audio_reason(self) -> str:
        reason = self._stream_error or self._decode_error or "holds no audio samples"
        if self._file.size_bytes() == 0 or (self._stream_error and not self._file.seekable()):
            return _diagnose_signature(self._file) or reason
        return reason

    def _location(self) -> str:
        return f"{self.name}: at {self._position_s:.2f} s"

    def _has_all_counted_samples(self) -> bool:
        """Tell whether an error came behind the last sample, from a tag that FFmpeg took for sound."""
        taggable = self._container.format.name in _TAGGABLE_FORMATS
        return taggable and abs(self._exact_duration_s() - self._position_s) < _ROUNDING_S

    def _exact_duration_s(self) -> float:
        counts = self._container.format.name.startswith(_EXACT_DURATION_FORMATS)
        return (self.duration_s or 0.0) if counts else 0.0


@contextmanager
def open_audio(source: FileSource) -> Iterator[AudioDecoder]:
    """Open a path, ``-`` for standard input, or a binary file object; a file opened here is also closed here.

    Raises
    ------
    AudioNotFound
        If there is no such file.
    AudioError
        If FFmpeg cannot read it, or it has no audio stream.
    """
    import av

    with ExitStack() as stack:
        name, file = _open_source(source, stack)
        try:
            ffmpeg_input = FFmpegInput(name, file)
        except AudioError:  # of the file object, which knows more
            raise
        except (OSError, ValueError) as error:  # closed, or it cannot tell its position
            raise AudioError(f"{name}: cannot be read: {_reason(error)}") from error
        try:
            with ffmpeg_input.reraise_read_errors():
                container = stack.enter_context(
                    av.open(
                        ffmpeg_input,
                        "r",
                        container_options=_NO_OTHER_PROTOCOLS,
                        **_metadata_options(av.__version__),
                    )
                )
        except Exception as error:
            if isinstance(error, AudioError):
                raise
            if error is ffmpeg_input.error:
                raise AudioError(f"{name}: cannot be read: {_reason(error)}") from error
            unreadable = f"is not a recording that FFmpeg can read ({_reason(error)}); {ALLOWED_SOURCES}"
            raise AudioError(f"{name}: {_diagnose_signature(ffmpeg_input) or unreadable}") from error
        yield AudioDecoder(name, ffmpeg_input, container)


def shared_views(source: FileSource) -> Iterator[FileSource]:
    """Yield as many sources of one recording as are asked for, to be read at the same time while this goes on.

    Raises
    ------
    AudioNotFound, AudioError
        If it is a pipe, which is read to its end, and that fails.
    """
    if isinstance(source, str | os.PathLike) and not is_pipe(source):
        yield from repeat(source)
    with ExitStack() as stack:
        name, file = _open_source(source, stack)
        if not (hasattr(file, "seekable") and file.seekable()):
            kept = stack.enter_context(tempfile.TemporaryFile())
            try:
                shutil.copyfileobj(file, kept)
                kept.seek(0)
            except OSError as error:
                raise AudioError(f"{name}: cannot be read: {_reason(error)}") from error
            file = kept
        origin = file.tell()
        while True:
            yield cast(IO[bytes], _View(name, file, origin))


class _View(io.RawIOBase):
    """A file object with a position of its own in a file that others read, too."""

    def __init__(self, name: str, file: IO[bytes], origin: int) -> None:
        self.name = name
        self._file, self._origin, self._position = file, origin, 0

    def read(self, size: int = -1) -> bytes:
        self._file.seek(self._origin + self._position)
        data = self._file.read(size)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence)
        if start is None:
            start = self._file.seek(0, io.SEEK_END) - self._origin
        self._position = start + offset
        return self._position

    def seekable(self) -> bool:
        return True


def is_pipe(source: str | os.PathLike[str]) -> bool:
    """Return whether a path, or ``-`` for standard input, can be read only once."""
    if source == "-":
        return True
    try:
        return stat.S_ISFIFO(os.stat(source).st_mode)
    except (OSError, ValueError):  # opening it tells what is wrong
        return False


def _diagnose_signature(file: FFmpegInput) -> str | None:
    """Return the reason why nothing can be read, if the first bytes show it."""
    if file.size_bytes() == 0:
        at_end = f"is at its end, byte {file.origin}, where reading would begin; seek(0) goes back"
        return at_end if file.origin else "is empty (0 bytes)"
    if file.signature[4:8] != b"ftyp":
        return None
    if file.seekable():
        return "an mp4 without its index (moov): the file is cut short or was never finished"
    return "an mp4 whose index (moov) is not in front cannot be read from a pipe; give the file itself"


def _metadata_options(version: str) -> dict[str, Any]:
    """Return the option that ignores badly encoded metadata; PyAV 19 and later always ignore it."""
    return {"metadata_errors": "ignore"} if int(version.split(".")[0]) < 19 else {}


def _open_source(source: Any, stack: ExitStack) -> tuple[str, IO[bytes]]:
    if source == "-":
        stdin = getattr(sys.stdin, "buffer", None)
        if stdin is None:  # a program without a console, or with a text in its place
            raise AudioError("<stdin>: there is no standard input")
        return "<stdin>", stdin
    if isinstance(source, str | os.PathLike):
        path = os.fsdecode(source)
        return on_one_line(path), stack.enter_context(_open_path(path))
    name = getattr(source, "name", None)
    name = name if isinstance(name, str) else f"<{type(source).__name__}>"
    if isinstance(source, io.TextIOBase) or not hasattr(source, "read"):
        raise AudioError(
            f"{name}: allowed is a path, '-' for standard input, a file opened in binary mode, or a numpy array"
        )
    return name, source


def _open_path(path: str) -> IO[bytes]:
    if os.path.isdir(path):
        raise AudioError(f"{on_one_line(path)}: is a directory; {ALLOWED_SOURCES}")
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        hint = "; a URL is not read: download it first" if "://" in path else ""
        raise AudioNotFound(f"{on_one_line(path)}: no such file{hint}") from None
    except (OSError, ValueError) as error:
        raise AudioError(f"{on_one_line(path)}: cannot be read: {_reason(error)}") from error


def _resample_to_mono(
    frames: Iterator[AudioFrame], chunk_s: float, channel: int | None
) -> Iterator[NDArray[np.int16]]:
    """Resample frames of one format and flush the resampler; all channels are mixed, unless one is chosen."""
    resampler, convert = mono_resampler(), None
    for joined in _join_frames(frames, chunk_s):
        if convert is None:
            convert = partial(_one, channel=channel) if channel is not None else _mixing(joined)
        for chunk in resampler.resample(convert(joined)):
            yield chunk.to_ndarray()[0]
    for chunk in resampler.resample(None):
        yield chunk.to_ndarray()[0]


def mono_resampler() -> AudioResampler:
    """Return a resampler to 16 bits, mono, 16 kHz."""
    import av

    return av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)


def _mixing(frame: AudioFrame) -> Callable[[AudioFrame], AudioFrame]:
    """Return what makes the frames of a layout ones that the resampler mixes down without leaving out a channel."""
    n_channels = len(frame.layout.channels)
    if frame.layout.name in ("mono", "stereo"):
        return without_cancellation
    if n_channels > 2 and frame.layout.name == f"{n_channels} channels":
        return _mean  # FFmpeg would take what has no names, as of a recorder, for surround sound, and leave out a bass
    try:
        mono_resampler().resample(frame)
    except (OSError, ValueError):  # FFmpeg has no weights for such channels
        return _mean
    return without_cancellation


def without_cancellation(frame: AudioFrame) -> AudioFrame:
    """Return a frame, or, of two channels whose mix is nearly silent, the first one twice."""
    if len(frame.layout.channels) != 2:
        return frame
    samples = _by_channel(frame)
    if not cancel_each_other(samples.astype(np.float32) - (128 if samples.dtype == np.uint8 else 0)):
        return frame
    return _make_frame(samples[[0, 0]], frame, frame.layout)


def cancel_each_other(samples: NDArray[np.float32]) -> bool:
    """Return whether samples of shape (channels, samples) are two channels whose mix is nearly silent.

    A balanced cable in a stereo input, or a wire soldered the wrong way round, makes one the negative of the other.
    """
    if len(samples) != 2:
        return False
    first, second = samples
    with np.errstate(over="ignore", invalid="ignore"):
        both, product = first @ first + second @ second, first @ second
        return bool(both + 2 * product < _LEAST_KEPT_ENERGY * both)


def _mean(frame: AudioFrame) -> AudioFrame:
    """Return the mean of all channels of a frame."""
    samples = _by_channel(frame)
    mean = samples.mean(axis=0, keepdims=True, dtype=np.float64)
    rounded = mean if samples.dtype.kind == "f" else np.rint(mean)
    return _make_frame(rounded.astype(samples.dtype), frame)


def _one(frame: AudioFrame, channel: int) -> AudioFrame:
    """Return one channel of a frame: silence, if it has so many no longer."""
    samples = _by_channel(frame)
    return _make_frame(samples[[channel]] if channel < len(samples) else np.zeros_like(samples[:1]), frame)


def _by_channel(frame: AudioFrame) -> NDArray[Any]:
    """Return the samples of a frame, of shape (channels, samples)."""
    if dtype := _PLANAR_DTYPES.get(frame.format.name):
        from av.audio.plane import AudioPlane

        # Not `frame.planes`, which takes the memory behind eight for a ninth.
        planes: list[Any] = [AudioPlane(frame, index) for index in range(len(frame.layout.channels))]
        return np.stack([np.frombuffer(plane, dtype, frame.samples) for plane in planes])
    samples: NDArray[Any] = frame.to_ndarray()
    return samples.reshape(frame.samples, -1).T


def _make_frame(samples: NDArray[Any], like: AudioFrame, layout: AudioLayout | str = "mono") -> AudioFrame:
    """Return a frame of the format and rate of another."""
    import av

    data = samples if like.format.is_planar else samples.T.reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(data), format=like.format.name, layout=layout)
    frame.sample_rate = like.sample_rate
    return frame


def _join_frames(frames: Iterator[AudioFrame], chunk_s: float) -> Iterator[AudioFrame]:
    """Join the codec's frames of about 20 ms, because each call into the resampler has a fixed cost."""
    import av

    fifo = av.AudioFifo()
    for frame in frames:
        fifo.write(frame)
        if fifo.samples >= chunk_s * frame.sample_rate:
            yield fifo.read()
    if fifo.samples:
        yield fifo.read()


def another_scale(samples: NDArray[Any]) -> str | None:
    """Return why samples are refused that are floats in another scale, but for a few wild ones."""
    if samples.dtype.kind != "f":
        return None
    wild = (samples > LOUDEST) | (samples < -LOUDEST)
    if np.count_nonzero(wild) <= max(_MAX_WILD_SAMPLES, _MAX_WILD_SHARE * samples.size):
        return None
    return (
        f"samples as large as {np.abs(samples).max():g}; allowed are floats in [-1, 1] (divide 16-bit values by 32768, "
        "or give them as int16)"
    )


def _check_samples(frame: AudioFrame) -> tuple[int, str | None]:
    """Return how many samples come before what is refused, and the reason if something is."""
    samples = _by_channel(frame)
    finite = np.isfinite(samples).all(axis=0)
    n_finite = frame.samples if finite.all() else int(np.argmin(finite))
    if reason := another_scale(samples[:, :n_finite]):
        return 0, reason
    return n_finite, NOT_FINITE if n_finite < frame.samples else None


def _reason(error: BaseException) -> str:
    """Return the first line of an error's text; for OSError and FFmpegError without errno and path."""
    return (str(getattr(error, "strerror", None) or error) or type(error).__name__).splitlines()[0]

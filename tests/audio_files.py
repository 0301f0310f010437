"""Audio files in many formats, written by PyAV: a tone that fades in, so that a shift or a wrong gain shows."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

TONE_HZ = 440


def tone(seconds: float, rate: int = 16_000) -> NDArray[np.float64]:
    """Make a 440 Hz tone that grows from silence to an amplitude of 0.5; shape (samples,)."""
    t = np.arange(round(seconds * rate)) / rate
    return 0.5 * t / seconds * np.sin(2 * np.pi * TONE_HZ * t)


def wav_bytes(pcm: NDArray[np.integer[Any]], rate_hz: int = 16_000) -> bytes:
    """Return a WAV file of samples of shape (samples,) or (samples, channels)."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1 if pcm.ndim == 1 else pcm.shape[1], pcm.itemsize, rate_hz, 0, "NONE", None))
        writer.writeframes(pcm.tobytes())
    return file.getvalue()


class Pipe(io.BytesIO):
    """A file that cannot be sought, and gives little at a time."""

    def seekable(self) -> bool:
        return False

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or -1, 5000))


@dataclass(frozen=True, kw_only=True)
class AudioFormat:
    """A format of audio files: container by the suffix, codec, and sample format."""

    suffix: str
    codec: str | None
    format: str = "s16"
    rate: int = 16_000
    layout: str = "mono"
    video: bool = False
    faststart: bool = False
    bit_rate: int | None = None
    muxer_options: tuple[tuple[str, str], ...] = ()

    def write(self, path: Path, seconds: float = 2.0, samples: NDArray[np.float64] | None = None) -> Path:
        """Write `samples` (default: `tone`) to `path` with the suffix of the format, and return the path."""
        path = path.with_suffix(self.suffix)
        options = dict(self.muxer_options) | ({"movflags": "faststart"} if self.faststart else {})
        with av.open(path, "w", options=options) as container:
            video = self._add_video(container) if self.video else None
            audio = None if self.codec is None else self._add_audio(container)
            if video is not None:
                self._write_video(container, video, seconds)
            if audio is not None:
                self._write_audio(container, audio, tone(seconds, self.rate) if samples is None else samples)
        return path

    def _add_video(self, container):
        video = container.add_stream("mpeg4", rate=5)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        return video

    def _add_audio(self, container):
        audio = container.add_stream(self.codec, rate=self.rate)
        audio.layout, audio.format = self.layout, self.format
        if self.bit_rate:
            audio.bit_rate = self.bit_rate
        return audio

    def _write_video(self, container, video, seconds):
        for _ in range(round(seconds * 5)):
            container.mux(video.encode(av.VideoFrame(64, 48, "yuv420p")))
        container.mux(video.encode(None))

    def _write_audio(self, container, audio, samples):
        channels = av.AudioLayout(self.layout).nb_channels
        frame_samples = audio.codec_context.frame_size or 1024
        resampler = av.AudioResampler(self.format, self.layout, self.rate, frame_size=frame_samples)
        frame = av.AudioFrame.from_ndarray(np.repeat(samples, channels)[None], "dbl", self.layout)
        frame.rate, frame.pts, frame.time_base = self.rate, 0, Fraction(1, self.rate)
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            container.mux(audio.encode(part))


AUDIO_FORMATS = {
    "wav s16": AudioFormat(suffix=".wav", codec="pcm_s16le"),
    "wav u8": AudioFormat(suffix=".wav", codec="pcm_u8", format="u8"),
    "wav s24 stereo": AudioFormat(suffix=".wav", codec="pcm_s24le", format="s32", rate=44_100, layout="stereo"),
    "wav float": AudioFormat(suffix=".wav", codec="pcm_f32le", format="flt"),
    "wav double stereo": AudioFormat(suffix=".wav", codec="pcm_f64le", format="dbl", layout="stereo"),
    "wav mu-law 8 kHz": AudioFormat(suffix=".wav", codec="pcm_mulaw", rate=8_000),
    "wav 48 kHz 5.1": AudioFormat(suffix=".wav", codec="pcm_s16le", rate=48_000, layout="5.1"),
    "flac": AudioFormat(suffix=".flac", codec="flac"),
    "flac 48 kHz 5.1": AudioFormat(suffix=".flac", codec="flac", rate=48_000, layout="5.1"),
    "mp3": AudioFormat(suffix=".mp3", codec="libmp3lame", format="fltp", rate=44_100, layout="stereo"),
    "ogg opus": AudioFormat(suffix=".ogg", codec="libopus", format="flt", rate=48_000),
    "m4a": AudioFormat(suffix=".m4a", codec="aac", format="fltp", rate=44_100, layout="stereo"),
    "mp4 video": AudioFormat(suffix=".mp4", codec="aac", format="fltp", rate=48_000, video=True),
    "mp4 video, index in front": AudioFormat(
        suffix=".mp4", codec="aac", format="fltp", rate=48_000, video=True, faststart=True
    ),
    "mkv video": AudioFormat(suffix=".mkv", codec="aac", format="fltp", rate=48_000, video=True),
}
WITH_SIZES = {
    "rf64": AudioFormat(suffix=".wav", codec="pcm_s16le", muxer_options=(("rf64", "always"),)),
    "w64": AudioFormat(suffix=".w64", codec="pcm_s16le"),
    "aiff": AudioFormat(suffix=".aiff", codec="pcm_s16be"),
    "au": AudioFormat(suffix=".au", codec="pcm_s16be"),
    "caf": AudioFormat(suffix=".caf", codec="pcm_s16le"),
    "avi": AudioFormat(suffix=".avi", codec="pcm_s16le", video=True),
    "wma": AudioFormat(suffix=".wma", codec="wmav2", format="fltp", bit_rate=32_000),
}
"""Further formats whose header says how long the sound is."""
VIDEO_ONLY = AudioFormat(suffix=".mp4", codec=None, video=True)

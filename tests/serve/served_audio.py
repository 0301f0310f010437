"""Recordings, and forms with them, as clients send them."""

from __future__ import annotations

import io

import av
import numpy as np

from audio_files import wav_bytes
from harken.contract import Floats
from harken.types import SAMPLE_RATE

BOUNDARY = "x-boundary"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def pcm(samples: Floats) -> bytes:
    """Return samples as s16le."""
    return (samples * 32767).astype("<i2").tobytes()


def wav(samples: Floats, n_bytes: int | None = None, rate_hz: int = SAMPLE_RATE) -> bytes:
    """Return samples at a rate as a WAV file, or its first bytes."""
    return wav_bytes((samples * 32767).astype("<i2"), rate_hz)[:n_bytes]


def webm(samples: Floats) -> bytes:
    """Return what a browser's MediaRecorder would send: Opus in WebM, without a length."""
    file = io.BytesIO()
    with av.open(file, "w", format="webm", options={"live": "1", "cluster_time_limit": "100"}) as container:
        stream = container.add_stream("libopus", rate=48_000)
        frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm(samples), "<i2")[None], "s16", "mono")
        frame.sample_rate = SAMPLE_RATE
        resampler = av.AudioResampler("s16", "mono", 48_000)
        for resampled in [*resampler.resample(frame), *resampler.resample(None), None]:
            container.mux(stream.encode(resampled))
    return file.getvalue()


def form_body(*parts: tuple[str, bytes]) -> bytes:
    """Write a form by hand: headers of each part, and its content."""
    body = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {headers}\r\n\r\n".encode() + content + b"\r\n"
        for headers, content in parts
    )
    return body + f"--{BOUNDARY}--\r\n".encode()


def file_form(recording: bytes, **fields: str) -> bytes:
    """Write a form with a recording and some fields."""
    named = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    return form_body(*named, ('name="file"; filename="speech.wav"', recording))

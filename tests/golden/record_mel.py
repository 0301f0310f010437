"""Record openai-whisper's log-mel of the example recording into data/mel_jfk.npz.

Run with openai-whisper installed:  python tests/golden/record_mel.py
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import av
import numpy as np
import torch
import whisper
from whisper.audio import N_SAMPLES, log_mel_spectrogram

EXAMPLE = Path(__file__).parents[2] / "examples" / "jfk.flac"
GOLDEN = Path(__file__).parent / "data" / "mel_jfk.npz"
FRAMES = np.unique(np.r_[:12, 0:1088:10, 1088:1104])  # both ends, the first padded frames, every tenth between


def main() -> None:
    with av.open(EXAMPLE) as container:
        pcm = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert pcm.dtype == np.int16
    samples = pcm.astype(np.float32) / 32768.0
    recorded = {"frames": FRAMES}
    for n_mels in (80, 128):
        padded = log_mel_spectrogram(samples, n_mels, padding=N_SAMPLES).numpy()
        plain = log_mel_spectrogram(samples, n_mels).numpy()
        recorded[f"padded_{n_mels}"] = padded[:, FRAMES]
        recorded[f"padded_means_{n_mels}"] = padded.mean(axis=1)
        recorded[f"padded_max_{n_mels}"] = padded.max()
        recorded[f"plain_end_{n_mels}"] = plain[:, -4:]
    recorded["provenance"] = np.array(
        [
            f"openai-whisper {whisper.__version__} audio.log_mel_spectrogram, torch {torch.__version__}",
            "python tests/golden/record_mel.py",
            f"sha256 of examples/jfk.flac {hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()}",
        ]
    )
    np.savez_compressed(GOLDEN, **recorded)


if __name__ == "__main__":
    main()

"""Hearings of `harken adapt`: the chunks of a stream that its student hears; its teacher hears a whole window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from harken.audio.mel import FFT_SAMPLES
from harken.contract import Floats
from harken.streaming.config import PRESETS, StreamingConfig
from harken.streaming.utterance import ActiveUtterance, EncoderChunk
from harken.training.labelling import whole_log_mel
from harken.training.options import AdaptOptions
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Dims

MAX_LIVE_SILENCE_FRAMES = 500
"""Most frames of silence behind the last chunk of an utterance, so that utterances are shorter than a window by it."""


@dataclass(frozen=True, slots=True)
class HeardChunk:
    """The frames that one call of `harken.contract.Backend.encode_chunk` encodes.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, frames), float32
    first_position : int
        Position of the first two frames in the stream.
    final_positions : int
        Number of positions that are final, from the first on.
    """

    mel: Floats
    first_position: int
    final_positions: int

    @property
    def positions(self) -> int:
        """Number of positions, look-ahead included."""
        return int(self.mel.shape[1]) // FRAMES_PER_POSITION


@dataclass(slots=True)
class _Heard:
    """`harken.contract.StreamingEncoderState` that encodes nothing: it keeps what it would have encoded."""

    chunks: list[HeardChunk] = field(default_factory=list)

    @property
    def final_positions(self) -> int:
        return sum(chunk.final_positions for chunk in self.chunks)

    @property
    def positions(self) -> int:
        return self.chunks[-1].first_position + self.chunks[-1].positions if self.chunks else 0

    def append(self, chunk: EncoderChunk) -> None:
        """Take the next chunk of an utterance."""
        final_positions = chunk.final_frames // FRAMES_PER_POSITION
        self.chunks.append(HeardChunk(chunk.mel, self.final_positions, final_positions))


def hear_whole(samples: Floats, dims: Dims, options: AdaptOptions) -> list[HeardChunk]:
    """Return audio as the teacher hears it: one whole window."""
    mel = whole_log_mel(samples, dims)
    return [HeardChunk(mel, 0, mel.shape[1] // FRAMES_PER_POSITION)]


def hear_update(samples: Floats, dims: Dims, options: AdaptOptions) -> list[HeardChunk]:
    """Return the chunks that a live session has encoded at an update; silence fills up the last hop."""
    return _hear_live(samples, dims, PRESETS[options.delay], has_ended=False)


def hear_utterance(samples: Floats, dims: Dims, options: AdaptOptions) -> list[HeardChunk]:
    """Return the chunks that a live session has encoded at the end of an utterance."""
    return _hear_live(samples, dims, PRESETS[options.delay], has_ended=True)


def max_live_s(dims: Dims) -> float:
    """Return the length of the longest utterance, in seconds."""
    return (FRAMES_PER_POSITION * dims.n_audio_ctx - MAX_LIVE_SILENCE_FRAMES) / FRAMES_PER_SECOND


def _hear_live(samples: Floats, dims: Dims, config: StreamingConfig, *, has_ended: bool) -> list[HeardChunk]:
    samples = samples[: round(max_live_s(dims) * SAMPLE_RATE)]
    n_frames = len(samples) // HOP_SAMPLES
    if not has_ended:
        n_frames = -(-n_frames // config.hop_frames) * config.hop_frames
        missing = n_frames * HOP_SAMPLES + FFT_SAMPLES // 2 - len(samples)
        samples = np.pad(samples, (0, max(0, missing)))
    heard = _Heard()
    utterance = ActiveUtterance(encoder=heard, n_mels=dims.n_mels, start_frame=0)
    while (end := utterance.next_update_sample(config)) <= len(samples):
        utterance.add_samples(samples[utterance.next_sample : end])
        heard.append(utterance.next_chunk(config))
    if has_ended:
        utterance.add_samples(samples[utterance.next_sample :])
        heard.append(utterance.last_chunk(n_frames))
    return heard.chunks


Hearing = Callable[[Floats, Dims, AdaptOptions], list[HeardChunk]]

HEARINGS: dict[str, tuple[Hearing, ...]] = {
    "live": (hear_update, hear_utterance),
    "whole": (hear_whole,),
}
"""By the name of what the student hears, the ways of hearing of which each step takes one."""

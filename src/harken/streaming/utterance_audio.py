"""The audio of an utterance in progress: its log-mel frames, and the windows of them that the encoder is given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harken.audio.mel import FFT_SAMPLES, LOG_MEL_FLOOR, LogMel, normalize
from harken.contract import Floats, StreamingEncoderState
from harken.streaming.config import StreamingConfig
from harken.types import FRAMES_PER_POSITION, HOP_SAMPLES

TRAILING_SILENCE_FRAMES = 100
"""Silence encoded after the audio so far: without it the decoder repeats itself."""
FINAL_SILENCE_FRAMES = 400
"""Silence encoded after the end of an utterance, where no AlignAtt threshold stops the decoder."""
WINDOW_BUCKET_FRAMES = 100
"""The last window is rounded up to a multiple of this, so that few shapes are compiled."""
ALIGNATT_THRESHOLD_FRAMES = 16
"""An update stops before a token whose attention peaks within this many frames of the end of the audio."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderChunk:
    """The input of the encoder for the next window of an utterance.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, frames), float32
    final_frames : int
        As for `harken.contract.Backend.encode_chunk`.
    positions : int
        Number of positions of the whole utterance that hold audio.
    frame_threshold : int
        As for `harken.decoding.PartialWindow`.
    """

    mel: Floats
    final_frames: int
    positions: int
    frame_threshold: int


class UtteranceAudio:
    """The audio of an utterance, as far as it has been heard.

    Parameters
    ----------
    encoder : StreamingEncoderState
        A new one.
    n_mels : int
    start_frame : int
        First mel frame of the utterance in the stream.

    Attributes
    ----------
    encoded_frames : int
        Frames of the utterance that the last update encoded as audio.
    """

    def __init__(self, encoder: StreamingEncoderState, n_mels: int, start_frame: int) -> None:
        self.encoder, self.start_frame = encoder, start_frame
        self.encoded_frames = self._skipped_frames = self._received_samples = 0
        self._log_mel = LogMel(n_mels)
        self._mel_frames = np.empty((n_mels, 0), np.float32)

    @property
    def start_sample(self) -> int:
        """First sample of the utterance in the stream."""
        return self.start_frame * HOP_SAMPLES

    @property
    def next_sample(self) -> int:
        """Sample of the stream after those received so far."""
        return self.start_sample + self._received_samples

    @property
    def final_frames(self) -> int:
        """Frames of the utterance that no window encodes again."""
        return self.encoder.final_positions * FRAMES_PER_POSITION

    @property
    def heard_frames(self) -> int:
        """Frames of the utterance that its text is about: the encoded ones, and silence behind them."""
        return self.encoded_frames + self._skipped_frames

    def next_update_sample(self, config: StreamingConfig) -> int:
        """Return the sample of the stream after the last one that the next update needs.

        The convolutions read one frame after the window, and half of that frame's FFT lies after its centre.
        """
        frames = self.heard_frames + config.hop_frames
        return self.start_sample + frames * HOP_SAMPLES + FFT_SAMPLES // 2

    def add_samples(self, samples: Floats) -> None:
        """Take the next samples, float32 at 16 kHz, from `next_sample` on."""
        self._received_samples += len(samples)
        self._mel_frames = np.concatenate([self._mel_frames, self._log_mel.feed(samples)], axis=1)

    def can_skip(self, config: StreamingConfig) -> bool:
        """Return true if a later update can make up for the next one."""
        later_frames = self.heard_frames + 2 * config.hop_frames
        return later_frames - self.final_frames <= config.max_window_frames

    def skip(self, config: StreamingConfig) -> None:
        """Let a hop of silence pass."""
        self._skipped_frames += config.hop_frames

    def next_chunk(self, config: StreamingConfig) -> EncoderChunk:
        """Return the next window: as many whole hops as the samples received so far allow."""
        self._skipped_frames = 0
        hops = (self._mel_frames.shape[1] - 1 - self.encoded_frames) // config.hop_frames
        self.encoded_frames += hops * config.hop_frames
        first_frame = self.final_frames
        next_window_frames = self.encoded_frames + config.hop_frames - first_frame
        # While there is no history, the window covers what will be history: beginnings need right context.
        max_frames = config.window_frames if first_frame else config.max_window_frames
        final_frames = next_window_frames - config.window_frames if next_window_frames > max_frames else 0
        final_frames = min(final_frames, self.encoded_frames - first_frame)
        return EncoderChunk(
            mel=self._with_silence(
                self._mel_frames[:, first_frame : self.encoded_frames + 1], TRAILING_SILENCE_FRAMES
            ),
            final_frames=final_frames // FRAMES_PER_POSITION * FRAMES_PER_POSITION,
            positions=self.encoded_frames // FRAMES_PER_POSITION,
            frame_threshold=ALIGNATT_THRESHOLD_FRAMES // FRAMES_PER_POSITION,
        )

    def last_chunk(self, end_frame: int) -> EncoderChunk:
        """Return the last window, up to a frame of the stream."""
        first_frame = self.final_frames
        self.encoded_frames = max(end_frame - self.start_frame, first_frame)
        if self._mel_frames.shape[1] < self.encoded_frames:
            self._mel_frames = np.concatenate([self._mel_frames, self._log_mel.flush()], axis=1)
        frames = self._mel_frames[:, first_frame : self.encoded_frames]
        silence_frames = FINAL_SILENCE_FRAMES + -(frames.shape[1] + FINAL_SILENCE_FRAMES) % WINDOW_BUCKET_FRAMES
        mel = self._with_silence(frames, silence_frames)
        return EncoderChunk(
            mel=mel,
            final_frames=mel.shape[1],
            positions=-(-self.encoded_frames // FRAMES_PER_POSITION),
            frame_threshold=0,
        )

    def has_decoded(self, frame: int) -> bool:
        """Return true if all speech before a frame of the stream is decoded: updates stop only after it."""
        return frame <= self.start_frame + self.encoded_frames - ALIGNATT_THRESHOLD_FRAMES

    def _with_silence(self, frames: Floats, silence_frames: int) -> Floats:
        """Return normalized frames for the encoder, followed by silence."""
        ceiling = float(np.max(self._mel_frames[:, : self.encoded_frames + 1], initial=LOG_MEL_FLOOR))
        silence = np.full((len(frames), silence_frames), LOG_MEL_FLOOR, np.float32)
        return normalize(np.concatenate([frames, silence], axis=1), ceiling)

"""What the GPU engine's encoder remembers of a stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.backends.torch.attention import AttentionFunction
from harken.backends.torch.device import upload
from harken.backends.torch.model import WhisperModel
from harken.backends.torch.session import TorchFeatures
from harken.contract import Floats
from harken.types import FRAMES_PER_POSITION

LEFT_CONTEXT_FRAMES = 2
"""Mel frames before a window that its convolutions reach: one for each of the two."""
PAD_MULTIPLE = 250
"""Where steps of the decoder are recorded, features of streams are filled up to a multiple of this many positions.

A stream grows with every update, and for each length the steps would have to be recorded anew.
"""


class TorchEncoderState:
    """`harken.contract.Encoder` over keys and values of the last positions that were kept.

    Cross-attention keys and values are computed as soon as positions are, and those of what is kept stay; so each
    update costs the decoder those of one window, not of all that was heard.

    Parameters
    ----------
    model : Model
    history : int
        Positions that a window looks back at.
    attend : Attend
        How a window attends to itself and the history.
    """

    def __init__(self, model: WhisperModel, history_positions: int, attend: AttentionFunction) -> None:
        dims = model.dims
        self._model, self._history_positions, self._attend = model, history_positions, attend
        self.final_positions = self.positions = 0
        self._left_context = np.zeros((dims.n_mels, LEFT_CONTEXT_FRAMES), np.float32)

        def empty(*leading: int, state: int) -> Tensor:
            return torch.empty((*leading, 0, state), dtype=model.dtype, device=model.device)

        self._past_kv = empty(2 * dims.n_audio_layer, state=dims.n_audio_state)
        self._encoder_output = empty(state=dims.n_audio_state)
        self._cross_kv = empty(dims.n_text_layer, 2, state=dims.n_text_state)

    @staticmethod
    def encode_chunk(states: Sequence[TorchEncoderState], mel: Floats, final_positions: int) -> None:
        """Encode the next windows of some streams of one model, of which the first `keep` positions are kept."""
        model, frames = states[0]._model, mel.shape[2]
        chunk_positions, right_padding = frames // FRAMES_PER_POSITION, 1 - frames % FRAMES_PER_POSITION
        assert all(stream.final_positions + chunk_positions <= model.dims.n_audio_ctx for stream in states), (
            "a stream is too long"
        )
        left_context = np.stack([stream._left_context for stream in states])
        mel_with_context = np.concatenate(
            [left_context, np.pad(mel, ((0, 0), (0, 0), (0, right_padding)))], axis=2
        )
        first_positions = upload([stream.final_positions for stream in states], model.device)
        past_kv, mask = _stack_past_kv(states, chunk_positions)
        encoder_output, new_kv = model.encode_chunk(
            upload(mel_with_context, model.device), first_positions, past_kv, mask, states[0]._attend
        )
        cross_kv = model.project_cross_kv(encoder_output)
        for row, stream in enumerate(states):
            stream._replace_lookahead(encoder_output[row], cross_kv[:, :, row])
            stream._append_history(
                mel[row, :, : FRAMES_PER_POSITION * final_positions], new_kv[:, row, :final_positions]
            )

    @staticmethod
    def stream_features(states: Sequence[TorchEncoderState], pad_multiple: int) -> TorchFeatures:
        """Features with one window a stream, of a multiple of `step` positions, or as many as there may be.

        Windows that fill them need no mask; but where lengths are rounded they get one all the same, for the steps of
        the decoder that were recorded with it.
        """
        lengths = tuple(stream.positions for stream in states)
        audio_positions = min(
            math.ceil(max(lengths) / pad_multiple) * pad_multiple, states[0]._model.dims.n_audio_ctx
        )
        return TorchFeatures(
            encoder_output=torch.stack(
                [_pad_to(stream._encoder_output, stream.positions, audio_positions) for stream in states]
            ),
            cross_kv=torch.stack(
                [_pad_to(stream._cross_kv, stream.positions, audio_positions) for stream in states], dim=2
            ),
            lengths=None if pad_multiple == 1 and min(lengths) == audio_positions else lengths,
        )

    def _replace_lookahead(self, encoder_output: Tensor, cross_kv: Tensor) -> None:
        """Take the positions of a window in the place of those of the look-ahead."""
        self._encoder_output = _write_at(self._encoder_output, self.final_positions, encoder_output)
        self._cross_kv = _write_at(self._cross_kv, self.final_positions, cross_kv)
        self.positions = self.final_positions + len(encoder_output)

    def _append_history(self, mel: Floats, new_kv: Tensor) -> None:
        """Remember what later windows look back at: frames, keys and values of the positions that are final."""
        self._left_context = np.concatenate([self._left_context, mel], axis=1)[:, -LEFT_CONTEXT_FRAMES:]
        past_kv = torch.cat([self._past_kv, new_kv], dim=1)
        self._past_kv = past_kv[:, max(0, past_kv.shape[1] - self._history_positions) :]
        self.final_positions += new_kv.shape[1]


def _stack_past_kv(states: Sequence[TorchEncoderState], chunk_positions: int) -> tuple[Tensor, Tensor | None]:
    """Pasts of some streams side by side, their ends aligned, and the mask that hides what some of them lack."""
    lengths = [stream._past_kv.shape[1] for stream in states]
    longest = max(lengths)
    missing = [longest - length for length in lengths]
    past_kv = torch.stack(
        [F.pad(s._past_kv, (0, 0, n, 0)) for s, n in zip(states, missing, strict=True)], dim=1
    )
    if not any(missing):
        return past_kv, None
    masked = np.arange(longest + chunk_positions) < np.array(missing)[:, None, None, None]
    return past_kv, upload(np.where(masked, -np.inf, 0), past_kv.device, past_kv.dtype)


def _write_at(buffer: Tensor, at: int, new: Tensor) -> Tensor:
    """A track of positions, its last axis but one, with something written from `at` on; it grows by doubling."""
    end = at + new.shape[-2]
    if end > buffer.shape[-2]:
        buffer = F.pad(buffer, (0, 0, 0, 2 * end - buffer.shape[-2]))
    buffer[..., at:end, :] = new
    return buffer


def _pad_to(buffer: Tensor, positions: int, audio_positions: int) -> Tensor:
    """The first positions of a track, with zeros behind them."""
    return F.pad(buffer[..., :positions, :], (0, 0, 0, audio_positions - positions))

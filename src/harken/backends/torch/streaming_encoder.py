"""The streaming encoder's state in the GPU engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.backends.encoding import StreamState
from harken.backends.torch.device import upload
from harken.backends.torch.model import AttentionFunction, WhisperModel
from harken.backends.torch.session import TorchFeatures
from harken.contract import Floats
from harken.types import FRAMES_PER_POSITION

PAD_MULTIPLE = 250
"""Features of streams are padded to a multiple of this many positions, if decoder steps are captured.

A stream grows with every update, and without padding the steps would be captured again for every length.
"""


class TorchEncoderState(StreamState):
    """`harken.contract.StreamingEncoderState` with keys and values of the last final positions.

    Cross-attention keys and values are computed once a chunk, and those of final positions are kept, so an update
    costs the projection of one chunk, not of the whole stream.

    Parameters
    ----------
    model : WhisperModel
    history_positions : int
        Number of final positions before a chunk that it attends to.
    attend : AttentionFunction
        Attention of a chunk to itself and the history.
    """

    def __init__(self, model: WhisperModel, history_positions: int, attend: AttentionFunction) -> None:
        dims = model.dims
        super().__init__(dims.n_mels)
        self._model, self._history_positions, self._attend = model, history_positions, attend

        def empty(*leading: int, state: int) -> Tensor:
            return torch.empty((*leading, 0, state), dtype=model.dtype, device=model.device)

        self._past_kv = empty(2 * dims.n_audio_layer, state=dims.n_audio_state)
        self._encoder_output = empty(state=dims.n_audio_state)
        self._cross_kv = empty(dims.n_text_layer, 2, state=dims.n_text_state)

    @staticmethod
    def encode_chunk(states: Sequence[TorchEncoderState], mel: Floats, final_positions: int) -> None:
        """Encode the next chunks of some streams of one model; their first `final_positions` become final."""
        model, chunk_positions = states[0]._model, mel.shape[2] // FRAMES_PER_POSITION
        longest = max(state.final_positions for state in states) + chunk_positions
        assert longest <= model.dims.n_audio_ctx, "the stream is too long"
        mel_with_context = np.stack([s.with_context(chunk) for s, chunk in zip(states, mel, strict=True)])
        first_positions = upload([state.final_positions for state in states], model.device)
        past_kv, mask = _stack_past_kv(states, chunk_positions)
        encoder_output, new_kv = model.encode_chunk(
            upload(mel_with_context, model.device), first_positions, past_kv, mask, states[0]._attend
        )
        cross_kv = model.project_cross_kv(encoder_output)
        for row, state in enumerate(states):
            state._replace_lookahead(encoder_output[row], cross_kv[:, :, row])
            state._append_history(new_kv[:, row, :final_positions])
            state.advance(mel_with_context[row], final_positions)

    @staticmethod
    def stream_features(states: Sequence[TorchEncoderState], pad_multiple: int) -> TorchFeatures:
        """Make features with one window a stream, padded to a multiple of `pad_multiple`, at most n_audio_ctx.

        Windows without padding need no mask; where lengths are rounded they get one all the same, since the decoder's
        steps were captured with it.
        """
        lengths = tuple(state.positions for state in states)
        audio_positions = min(
            math.ceil(max(lengths) / pad_multiple) * pad_multiple, states[0]._model.dims.n_audio_ctx
        )
        return TorchFeatures(
            encoder_output=torch.stack(
                [_pad_to(state._encoder_output, state.positions, audio_positions) for state in states]
            ),
            cross_kv=torch.stack(
                [_pad_to(state._cross_kv, state.positions, audio_positions) for state in states], dim=2
            ),
            lengths=None if pad_multiple == 1 and min(lengths) == audio_positions else lengths,
        )

    def _replace_lookahead(self, encoder_output: Tensor, cross_kv: Tensor) -> None:
        """Replace the positions of the look-ahead by those of a chunk."""
        self._encoder_output = _write_at(self._encoder_output, self.final_positions, encoder_output)
        self._cross_kv = _write_at(self._cross_kv, self.final_positions, cross_kv)

    def _append_history(self, new_kv: Tensor) -> None:
        """Keep the history that later chunks attend to: keys and values of new final positions."""
        past_kv = torch.cat([self._past_kv, new_kv], dim=1)
        self._past_kv = past_kv[:, max(0, past_kv.shape[1] - self._history_positions) :]


def _stack_past_kv(states: Sequence[TorchEncoderState], chunk_positions: int) -> tuple[Tensor, Tensor | None]:
    """Stack the histories of some streams, aligned at their ends; return them and the mask of the padding."""
    lengths = [state._past_kv.shape[1] for state in states]
    longest = max(lengths)
    missing = [longest - length for length in lengths]
    past_kv = torch.stack(
        [F.pad(state._past_kv, (0, 0, n, 0)) for state, n in zip(states, missing, strict=True)], dim=1
    )
    if not any(missing):
        return past_kv, None
    masked = np.arange(longest + chunk_positions) < np.array(missing)[:, None, None, None]
    return past_kv, upload(np.where(masked, -np.inf, 0), past_kv.device, past_kv.dtype)


def _write_at(buffer: Tensor, at: int, new: Tensor) -> Tensor:
    """Write from position `at` on, along the last axis but one; return the buffer, or a larger copy of it."""
    end = at + new.shape[-2]
    if end > buffer.shape[-2]:
        buffer = F.pad(buffer, (0, 0, 0, 2 * end - buffer.shape[-2]))
    buffer[..., at:end, :] = new
    return buffer


def _pad_to(buffer: Tensor, positions: int, audio_positions: int) -> Tensor:
    """Return the first positions of a buffer, padded with zeros."""
    return F.pad(buffer[..., :positions, :], (0, 0, 0, audio_positions - positions))

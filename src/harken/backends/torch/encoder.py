"""What the GPU engine's encoder remembers of a stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.backends.torch.attention import Attend
from harken.backends.torch.device import upload
from harken.backends.torch.model import Model
from harken.backends.torch.session import TorchFeatures
from harken.contract import Floats
from harken.types import FRAMES_PER_STEP

LEFT_FRAMES = 2
"""Mel frames before a window that its convolutions reach: one for each of the two."""
SPAN_STEP = 250
"""Where steps of the decoder are recorded, features of streams are filled up to a multiple of this many positions.

A stream grows with every update, and for each length the steps would have to be recorded anew.
"""


class TorchEncoder:
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

    def __init__(self, model: Model, history: int, attend: Attend) -> None:
        dims = model.dims
        self._model, self._history, self._attend = model, history, attend
        self.kept = self.positions = 0
        self._left = np.zeros((dims.n_mels, LEFT_FRAMES), np.float32)

        def nothing(*tracks: int, state: int) -> Tensor:
            return torch.empty((*tracks, 0, state), dtype=model.dtype, device=model.device)

        self._past = nothing(2 * dims.n_audio_layer, state=dims.n_audio_state)
        self._encoded = nothing(state=dims.n_audio_state)
        self._cross = nothing(dims.n_text_layer, 2, state=dims.n_text_state)

    @staticmethod
    def hear(streams: Sequence[TorchEncoder], mel: Floats, keep: int) -> None:
        """Encode the next windows of some streams of one model, of which the first `keep` positions are kept."""
        model, frames = streams[0]._model, mel.shape[2]
        window, behind = frames // FRAMES_PER_STEP, 1 - frames % FRAMES_PER_STEP
        assert all(stream.kept + window <= model.dims.n_audio_ctx for stream in streams), "a stream is too long"
        left = np.stack([stream._left for stream in streams])
        sound = np.concatenate([left, np.pad(mel, ((0, 0), (0, 0), (0, behind)))], axis=2)
        first = upload([stream.kept for stream in streams], model.device)
        past, mask = _pasts(streams, window)
        encoded, fresh = model.hear(upload(sound, model.device), first, past, mask, streams[0]._attend)
        cross = model.listen(encoded)
        for row, stream in enumerate(streams):
            stream._take(encoded[row], cross[:, :, row])
            stream._keep(mel[row, :, : FRAMES_PER_STEP * keep], fresh[:, row, :keep])

    @staticmethod
    def gather(streams: Sequence[TorchEncoder], step: int) -> TorchFeatures:
        """Features with one window a stream, of a multiple of `step` positions, or as many as there may be.

        Windows that fill them need no mask; but where lengths are rounded they get one all the same, for the steps of
        the decoder that were recorded with it.
        """
        lengths = tuple(stream.positions for stream in streams)
        span = min(math.ceil(max(lengths) / step) * step, streams[0]._model.dims.n_audio_ctx)
        return TorchFeatures(
            encoded=torch.stack([_reaching(stream._encoded, stream.positions, span) for stream in streams]),
            cross=torch.stack([_reaching(stream._cross, stream.positions, span) for stream in streams], dim=2),
            lengths=None if step == 1 and min(lengths) == span else lengths,
        )

    def _take(self, encoded: Tensor, cross: Tensor) -> None:
        """Take the positions of a window in the place of those of the look-ahead."""
        self._encoded = _written(self._encoded, self.kept, encoded)
        self._cross = _written(self._cross, self.kept, cross)
        self.positions = self.kept + len(encoded)

    def _keep(self, mel: Floats, fresh: Tensor) -> None:
        """Remember what later windows look back at: frames, keys and values of the positions that are final."""
        self._left = np.concatenate([self._left, mel], axis=1)[:, -LEFT_FRAMES:]
        past = torch.cat([self._past, fresh], dim=1)
        self._past = past[:, max(0, past.shape[1] - self._history) :]
        self.kept += fresh.shape[1]


def _pasts(streams: Sequence[TorchEncoder], window: int) -> tuple[Tensor, Tensor | None]:
    """Pasts of some streams side by side, their ends aligned, and the mask that hides what some of them lack."""
    lengths = [stream._past.shape[1] for stream in streams]
    longest = max(lengths)
    missing = [longest - length for length in lengths]
    past = torch.stack([F.pad(s._past, (0, 0, n, 0)) for s, n in zip(streams, missing, strict=True)], dim=1)
    if not any(missing):
        return past, None
    hidden = np.arange(longest + window) < np.array(missing)[:, None, None, None]
    return past, upload(np.where(hidden, -np.inf, 0), past.device, past.dtype)


def _written(track: Tensor, at: int, fresh: Tensor) -> Tensor:
    """A track of positions, its last axis but one, with something written from `at` on; it grows by doubling."""
    end = at + fresh.shape[-2]
    if end > track.shape[-2]:
        track = F.pad(track, (0, 0, 0, 2 * end - track.shape[-2]))
    track[..., at:end, :] = fresh
    return track


def _reaching(track: Tensor, positions: int, span: int) -> Tensor:
    """The first positions of a track, with zeros behind them."""
    return F.pad(track[..., :positions, :], (0, 0, 0, span - positions))

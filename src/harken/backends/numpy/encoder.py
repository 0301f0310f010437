"""The encoder of a stream as one pass of the offline encoder, under a mask that says what a stream could know.

Nothing is kept but what was heard. The windows are laid side by side, so that frames of look-ahead stand there as often
as they were heard, and each position sees its own window and, of the earlier ones, what was kept (the rearranged
sequence of Shi et al. 2021, "Emformer", section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harken.backends.numpy import model
from harken.backends.numpy.model import Mask, Weights
from harken.contract import Floats
from harken.types import Dims


@dataclass(frozen=True, slots=True)
class Window:
    """What was heard at once.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, 2 W or 2 W + 1), float32
    first : int
        Position of its first two frames in the stream.
    keep : int
        How many of its positions are final.
    """

    mel: Floats
    first: int
    keep: int

    @property
    def positions(self) -> int:
        return int(self.mel.shape[1]) // 2


class NumpyEncoder:
    """`harken.contract.Encoder` whose only state is the windows that it was given."""

    def __init__(self, weights: Weights, dims: Dims, history: int) -> None:
        assert history % 2 == 0, "a history is an even number of frames"
        self._weights, self._dims, self._history = weights, dims, history // 2
        self._windows: list[Window] = []

    @property
    def kept(self) -> int:
        return sum(window.keep for window in self._windows)

    @property
    def positions(self) -> int:
        return self._windows[-1].first + self._windows[-1].positions if self._windows else 0

    def hear(self, mel: Floats, keep: int) -> None:
        """Note a window of shape (n_mels, frames), of whose frames the first `keep` are final."""
        window = Window(mel.copy(), self.kept, keep // 2)
        assert keep in range(0, mel.shape[1] + 1, 2), "an even number of frames is kept, at most the window's"
        assert window.first + window.positions <= self._dims.n_audio_ctx, "a stream has outgrown the encoder"
        self._windows.append(window)

    def encode(self) -> Floats:
        """All positions, those of the look-ahead last, shape (positions, n_audio_state)."""
        heard = self._windows
        x = model.attend(stem(heard, self._weights), self._weights, self._dims, visible(heard, self._history))
        last = np.arange(len(x)) >= len(x) - heard[-1].positions
        y: Floats = x[final(heard) | last]
        return y


def stem(windows: Sequence[Window], weights: Weights) -> Floats:
    """Convolve each window behind all that was kept before it, and lay them side by side."""
    parts, before = [], windows[0].mel[:, :0]
    for window in windows:
        sound = np.concatenate([before, window.mel], axis=1)
        parts.append(model.stem(sound, weights)[window.first :])
        before = sound[:, : 2 * (window.first + window.keep)]
    return np.concatenate(parts)


def visible(windows: Sequence[Window], history: int) -> Mask:
    """Which of all positions side by side each one sees."""
    owner = np.repeat(np.arange(len(windows)), [window.positions for window in windows])
    position = np.concatenate([window.first + np.arange(window.positions) for window in windows])
    begin = np.array([window.first for window in windows])[owner]
    past = final(windows) & (owner < owner[:, None]) & (position >= begin[:, None] - history)
    return np.asarray(past | (owner == owner[:, None]), np.bool_)


def final(windows: Sequence[Window]) -> Mask:
    """Which of all positions side by side were kept, shape (positions,)."""
    return np.concatenate([np.arange(window.positions) < window.keep for window in windows])

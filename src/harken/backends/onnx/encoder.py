"""What the CPU engine's encoder remembers of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harken.backends.onnx.runtimes import Arrays
from harken.backends.onnx.session import HIDDEN, OnnxFeatures
from harken.contract import Floats
from harken.types import FRAMES_PER_STEP, Dims

LEFT_FRAMES = 2
"""Mel frames before a window that its convolutions reach: one for each of the two."""


class OnnxEncoder:
    """`harken.contract.Encoder` for a graph (see `harken.backends.onnx.graphs.window`).

    Parameters
    ----------
    dims : Dims
    history : int
        Positions that a window looks back at.
    """

    def __init__(self, dims: Dims, history: int) -> None:
        self._dims, self._history = dims, history
        self.kept = self.positions = 0
        self._left = np.zeros((dims.n_mels, LEFT_FRAMES), np.float32)
        heads, head = dims.n_audio_head, dims.n_audio_state // dims.n_audio_head
        shapes = {"k": (heads, head, history), "v": (heads, history, head)}
        self._past = {
            f"past_{part}.{i}": np.zeros(shape, np.float32)
            for i in range(dims.n_audio_layer)
            for part, shape in shapes.items()
        }
        self._given: dict[str, Floats] = {}

    @staticmethod
    def ask(streams: Sequence[OnnxEncoder], mel: Floats) -> tuple[Arrays, Arrays]:
        """Inputs of the graph for the next windows of some streams, and room for its outputs."""
        dims, history, frames = streams[0]._dims, streams[0]._history, mel.shape[2]
        size, behind = frames // FRAMES_PER_STEP, 1 - frames % FRAMES_PER_STEP
        left = np.stack([stream._left for stream in streams])
        starts = np.array([stream.kept for stream in streams])[:, None]
        inside = np.ones((len(streams), 1, FRAMES_PER_STEP * size + 1), np.float32)
        inside[starts[:, 0] == 0, :, 0] = 0
        mask = np.zeros((len(streams), 1, 1, history + size), np.float32)
        mask[:, 0, 0, :history][np.arange(history, 0, -1) > starts] = HIDDEN
        inputs = {
            "mel": np.concatenate([left, np.pad(mel, ((0, 0), (0, 0), (0, behind)))], axis=2),
            "inside": inside,
            "positions": starts + np.arange(size),
            "mask": mask,
        }
        for name in streams[0]._past:
            inputs[name] = np.stack([stream._past[name] for stream in streams])
        heads, head = dims.n_audio_head, dims.n_audio_state // dims.n_audio_head
        into = {"heard": np.empty((len(streams), size, dims.n_audio_state), np.float32)}
        for i in range(dims.n_audio_layer):
            into[f"key.{i}"] = np.empty((len(streams), heads, head, size), np.float32)
            into[f"value.{i}"] = np.empty((len(streams), heads, size, head), np.float32)
        return inputs, into

    def take(self, mel: Floats, fresh: Arrays, keep: int) -> None:
        """Take what was heard in a window, and remember of its first `keep` positions what later ones look back at.

        Parameters
        ----------
        mel : ndarray of shape (n_mels, frames), float32
        fresh : dict of str to ndarray
            Of the stream alone: outputs of the graph, and of the bridge behind it.
        keep : int
        """
        for i in range(self._dims.n_audio_layer):
            self._remember(f"past_k.{i}", fresh[f"key.{i}"][:, :, :keep], axis=2)
            self._remember(f"past_v.{i}", fresh[f"value.{i}"][:, :keep], axis=1)
        seen = np.concatenate([self._left, mel[:, : FRAMES_PER_STEP * keep]], axis=1)
        self._left = seen[:, seen.shape[1] - LEFT_FRAMES :]
        names = [name for name in fresh if name == "heard" or name.startswith("cross")]
        if not self._given:
            self._given = {
                name: np.empty((*fresh[name].shape[:-2], 0, fresh[name].shape[-1]), np.float32)
                for name in names
            }
        size = fresh["heard"].shape[0]
        for name in names:
            self._given[name] = _written(self._given[name], self.kept, fresh[name])
        self.kept, self.positions = self.kept + keep, self.kept + size

    @staticmethod
    def gather(streams: Sequence[OnnxEncoder]) -> OnnxFeatures:
        """Features with one window a stream."""
        lengths = [stream.positions for stream in streams]
        longest = max(lengths)
        joined = {
            name: np.stack([_reaching(stream._given[name], stream.positions, longest) for stream in streams])
            for name in streams[0]._given
        }
        return OnnxFeatures(joined.pop("heard"), joined, lengths)

    def _remember(self, name: str, fresh: Floats, axis: int) -> None:
        joined = np.concatenate([self._past[name], fresh], axis)
        self._past[name] = np.ascontiguousarray(
            np.take(joined, np.arange(joined.shape[axis] - self._history, joined.shape[axis]), axis)
        )


def _written(track: Floats, at: int, fresh: Floats) -> Floats:
    """A track, whose positions lie along the second axis from the end, with what is fresh from `at` on."""
    end = at + fresh.shape[-2]
    if end > track.shape[-2]:
        grown = np.zeros((*track.shape[:-2], 2 * end, track.shape[-1]), np.float32)
        grown[..., : track.shape[-2], :] = track
        track = grown
    track[..., at:end, :] = fresh
    return track


def _reaching(track: Floats, positions: int, longest: int) -> Floats:
    """What a track holds, with zeros behind it up to a common length."""
    return np.pad(track[..., :positions, :], [(0, 0)] * (track.ndim - 2) + [(0, longest - positions), (0, 0)])

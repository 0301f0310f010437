"""Embeddings of voices: CAM++ over the filter bank of pieces of speech, without PyTorch.

The filter bank equals Kaldi's with the options of 3D-Speaker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.runtimes import BuiltGraph, Graph, OnnxRuntimeGraph, stored_graph
from harken.checkpoints.model_files import WatchedFile, watch
from harken.contract import Floats
from harken.errors import CheckpointError
from harken.speakers.campplus import CampplusWeights, campplus

SHORTEST_SAMPLES = 4800
"""0.3 s; a shorter piece is repeated up to this length, as 3D-Speaker does with pieces."""

_GRAPH_VERSION = 2
"""Part of the name of the stored graph; raise it with every change of the graph."""
_BATCH_FRAMES = 600
"""Larger batches are no faster, and memory grows by 3 MB a second of audio; a longer piece is a batch of its own."""

N_BANDS = 80
FRAME_SAMPLES = 400
HOP_SAMPLES = 160

_FFT_SAMPLES = 512
_PREEMPHASIS = np.float32(0.97)
_LOWEST_HZ, _HIGHEST_HZ = 20.0, 8000.0
_FLOOR = np.finfo(np.float32).eps
_CHUNK_FRAMES = 64
"""Frames, spectra and powers of one chunk stay in a core's L2 cache."""
_GROUP_BANDS = 16
"""So few bands have few points in common, and their product is too small for OpenBLAS to wake other threads."""


class EmbeddingModel:
    """A CAM++ model that turns pieces of speech into vectors, close together where the voice is the same.

    Loading builds a graph of the weights, or takes it from the store if these weights have been loaded before.

    Parameters
    ----------
    path : Path
        A state dict of CAM++ for 80 bands, as 3D-Speaker publishes it.
    threads : int
        Threads of one batch.
    cache : Path or None
        Directory of stored graphs; by default in the user's cache directory.

    Attributes
    ----------
    size : int
        Length of an embedding; 192 for the published models.

    Raises
    ------
    CheckpointError
        If the file is missing or damaged, or holds another model.
    """

    def __init__(self, path: Path, *, threads: int, cache: Path | None) -> None:
        file = watch(path)
        weights = CampplusWeights(path)
        if weights.bands != N_BANDS:
            raise CheckpointError(f"{path}: a CAM++ model for {weights.bands} bands, allowed is {N_BANDS}")
        self.size = weights.embedding_size
        self._graph = _load(weights, file, threads, cache)

    def embed(self, pieces: Sequence[Floats]) -> Floats:
        """Compute the embeddings of pieces of speech.

        A piece's embedding does not depend on the others, but for the rounding: pieces of the same length are computed
        at once.

        Parameters
        ----------
        pieces : sequence of ndarray of shape (samples,), float32, 16 kHz
            Of any length but 0; one shorter than 0.3 s is repeated up to that length.

        Returns
        -------
        ndarray of shape (pieces, size), float32
            Each of length 1.
        """
        pieces = [_long_enough(piece) for piece in pieces]
        embeddings = np.empty((len(pieces), self.size), np.float32)
        for batch in _batches(pieces):
            result = np.empty((len(batch), self.size), np.float32)
            self._graph({"fbank": np.stack([fbank(pieces[i]) for i in batch])}, {"embedding": result})
            embeddings[batch] = result
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
        return embeddings


def _load(weights: CampplusWeights, file: WatchedFile, threads: int, cache: Path | None) -> Graph:
    def build() -> BuiltGraph:
        graph = campplus(weights)
        file.check_unchanged()
        return graph

    key = f"{file.sha256()[:32]}-campplus-v{_GRAPH_VERSION}"
    return OnnxRuntimeGraph(stored_graph(key, build, cache), threads)


def _long_enough(piece: Floats) -> Floats:
    if not len(piece):
        raise ValueError("a piece of speech has no samples, allowed is 1 or more")
    return np.resize(piece, SHORTEST_SAMPLES) if len(piece) < SHORTEST_SAMPLES else piece


def _batches(pieces: Sequence[Floats]) -> Iterator[list[int]]:
    """Group the numbers of pieces that have as many frames."""
    of_length: defaultdict[int, list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        of_length[frame_count(len(piece))].append(number)
    for frames, numbers in of_length.items():
        size = max(1, _BATCH_FRAMES // frames)
        yield from (numbers[i : i + size] for i in range(0, len(numbers), size))


def frame_count(samples: int) -> int:
    """Return the number of whole frames in a number of samples."""
    return max(0, 1 + (samples - FRAME_SAMPLES) // HOP_SAMPLES)


def fbank(samples: Floats) -> Floats:
    """Compute the log filter bank of a piece, without the mean of each band.

    Recipe (torchaudio.compliance.kaldi.fbank without dither): frames of 25 ms every 10 ms, only those that lie whole in
    the piece; their mean removed, pre-emphasis, Povey window, power spectrum of 512 points, 80 triangles on Kaldi's mel
    scale from 20 Hz to 8 kHz, natural logarithm. Then each band's mean over time is subtracted, which makes the result
    independent of the loudness.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32, 16 kHz
        Full scale is 1. At least `FRAME_SAMPLES`.

    Returns
    -------
    ndarray of shape (frames, 80), float32
    """
    bands = np.empty((frame_count(len(samples)), N_BANDS), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME_SAMPLES)[::HOP_SAMPLES]
    for start in range(0, len(bands), _CHUNK_FRAMES):
        _log_energies(frames[start : start + _CHUNK_FRAMES], bands[start : start + _CHUNK_FRAMES])
    bands -= bands.mean(axis=0, dtype=np.float64).astype(np.float32)
    return bands


def _log_energies(frames: Floats, out: Floats) -> None:
    """Write the logarithms of the bands' energies of some frames to `out`."""
    centred = frames - frames.mean(axis=1, keepdims=True)
    windowed = np.empty_like(centred)
    np.multiply(centred[:, :-1], -_PREEMPHASIS, out=windowed[:, 1:])
    windowed[:, 1:] += centred[:, 1:]
    windowed[:, 0] = centred[:, 0] * (1 - _PREEMPHASIS)  # the sample before the first equals it
    windowed *= _window()
    spectrum = np.fft.rfft(windowed, _FFT_SAMPLES)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32, copy=False)
    for bands, points, triangles in _band_groups():
        np.matmul(power[:, points], triangles, out=out[:, bands])
    np.log(np.maximum(out, _FLOOR, out=out), out=out)


@cache
def _window() -> Floats:
    """Return the Povey window: Hann's, to the power of 0.85."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1))
    window: Floats = (hann**0.85).astype(np.float32)
    return window


@cache
def _band_groups() -> list[tuple[slice, slice, Floats]]:
    """List groups of bands: the bands, the points of the spectrum in them, and each point's weight in each band."""
    triangles = _triangles()
    groups = []
    for first in range(0, N_BANDS, _GROUP_BANDS):
        bands = slice(first, first + _GROUP_BANDS)
        used = np.flatnonzero(triangles[:, bands].any(axis=1))
        points = slice(int(used[0]), int(used[-1]) + 1)
        groups.append((bands, points, np.ascontiguousarray(triangles[points, bands])))
    return groups


def _triangles() -> Floats:
    """Return the weight of each point of the spectrum in each band, (256, 80): none reaches the last point."""
    edges = np.linspace(_mel(_LOWEST_HZ), _mel(_HIGHEST_HZ), N_BANDS + 2)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    points = _mel(np.arange(_FFT_SAMPLES // 2) * (16000 / _FFT_SAMPLES))[:, None]
    rising, falling = (points - left) / (centre - left), (right - points) / (right - centre)
    triangles: Floats = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return triangles


def _mel(hertz: float | NDArray[Any]) -> Any:
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)

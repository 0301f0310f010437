"""Embeddings of voices: CAM++ over pieces of speech, without PyTorch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from harken.backends.onnx.graph_files import BuiltGraph, stored_graph
from harken.backends.onnx.runtimes import Graph, OnnxRuntimeGraph
from harken.backends.store import FileStore, default_store_directory
from harken.checkpoints.model_files import WatchedFile, watch
from harken.contract import Floats
from harken.errors import CheckpointError
from harken.speakers.campplus import CampplusWeights, campplus, open_campplus
from harken.speakers.fbank import N_BANDS, fbank, frame_count

SHORTEST_SAMPLES = 4800
"""0.3 s; a shorter piece is repeated up to this length, as 3D-Speaker does with pieces."""

_GRAPH_VERSION = 2
"""Part of the name of the stored graph; raise it with every change of the graph."""
_BATCH_FRAMES = 600
"""Larger batches are no faster, and memory grows by 3 MB a second of audio; a longer piece is a batch of its own."""


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
        weights = open_campplus(path)
        if weights.bands != N_BANDS:
            raise CheckpointError(f"{path}: a CAM++ model for {weights.bands} bands, allowed is {N_BANDS}")
        self.size = weights.embedding_size
        self._graph = _load(weights, file, threads, FileStore(cache or default_store_directory()))

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


def _load(weights: CampplusWeights, file: WatchedFile, threads: int, store: FileStore) -> Graph:
    def build() -> BuiltGraph:
        graph = campplus(weights)
        file.check_unchanged()
        return graph

    key = f"{file.sha256()[:32]}-campplus-v{_GRAPH_VERSION}"
    return OnnxRuntimeGraph(stored_graph(store, key, build), threads)


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

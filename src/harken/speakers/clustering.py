"""Clustering: which pieces of speech are of one voice, and so who speaks when.

Agglomerative clustering of embeddings by mean distance finds voices in blocks of pieces, voices that are alike are
joined, and every piece goes to the nearest voice. The constants were chosen on conversations made of every second
speaker of the recordings (docs/decisions/speakers.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats
from harken.errors import BackendUnavailable, install_hint
from harken.speakers.pieces import (
    FIRST_CENTRE_SAMPLES,
    HOP_FRAMES,
    STEP_SAMPLES,
    Piece,
    Run,
    SpeechPieces,
    nearest_runs,
)
from harken.types import SAMPLE_RATE

MAX_DISTANCE = 0.65
"""Mean cosine distance up to which clusters are joined."""
CUTS = (MAX_DISTANCE, 0.55, 0.45, 0.35, 0.25, 0.15, 0.0)
"""The same, for more and more voices: used where there must be more of them."""
SAME_VOICE = 0.5
"""Cosine similarity of the mean embeddings of two clusters from which they are one voice."""
MIN_RELIABLE_S = 1.5
"""Pieces of which less was embedded found no cluster: their embeddings say little."""
MIN_VOICE_S = 3.0
"""Clusters with less speech are no voices; their pieces go to others."""
MAX_BLOCK_PIECES = 2000
"""Pieces that are clustered at once, about an hour of speech; the distances between them take 16 MB."""
WINDOW_WEIGHT = 0.3
"""Weight of the other pieces of the same local speaker in the choice of a piece's voice."""
MAX_PAUSE_S = 0.3
"""Longest pause within a turn, as in NIST's evaluations of diarization."""

Stretch = tuple[float, float]
"""Start and end in seconds."""
VoiceTurn = tuple[float, float, int]
"""Start and end in seconds, and the index of the voice."""

Matrix = NDArray[np.float64]


class Voices(NamedTuple):
    """The voices of a recording.

    Attributes
    ----------
    labels : ndarray of shape (pieces,), int
        Index of the voice of each piece.
    centroids : ndarray of shape (voices, 192)
        Mean embedding of each voice, unit length.
    """

    labels: NDArray[np.int64]
    centroids: Matrix


class _Cluster(NamedTuple):
    total: Matrix
    """Sum of its embeddings, each times its seconds."""
    seconds: float


def centroid(total: Matrix) -> Matrix:
    """Return a sum of embeddings with the length 1."""
    direction: Matrix = total / max(float(np.linalg.norm(total)), 1e-12)
    return direction


def find_voices(pieces: Sequence[Piece], fewest: int, most: int) -> Voices:
    """Find the voices of a recording.

    Parameters
    ----------
    pieces : sequence of Piece
        At least one, in order of time.
    fewest, most : int
        Bounds of the number of voices; fewer are found where there are fewer pieces.
    """
    reliable = [piece for piece in pieces if piece.embedded_s >= MIN_RELIABLE_S] or pieces
    clusters: list[_Cluster] = []
    for cut in CUTS:
        clusters = _voices_of(reliable, cut, fewest)
        if len(clusters) >= fewest:
            break
    clusters = _joined(clusters, most, -1.0)
    return _assign(pieces, np.stack([centroid(cluster.total) for cluster in clusters]), keep_all=fewest > 1)


def _voices_of(pieces: Sequence[Piece], cut: float, fewest: int) -> list[_Cluster]:
    """Return the clusters that are voices: the large ones, or as many as there must be."""
    blocks = [pieces[i : i + MAX_BLOCK_PIECES] for i in range(0, len(pieces), MAX_BLOCK_PIECES)]
    clusters = [cluster for block in blocks for cluster in _clusters(block, cut)]
    clusters = _joined(clusters, fewest, SAME_VOICE)
    clusters.sort(key=lambda cluster: -cluster.seconds)
    n_large = sum(cluster.seconds >= MIN_VOICE_S for cluster in clusters)
    return clusters[: max(n_large, fewest)]


def _clusters(pieces: Sequence[Piece], cut: float) -> Iterator[_Cluster]:
    """Yield the clusters of a block."""
    embeddings = np.stack([piece.embedding for piece in pieces]).astype(np.float64)
    seconds = np.array([piece.seconds for piece in pieces])
    labels = agglomerated(embeddings, cut) if len(pieces) > 1 else np.zeros(1, np.int64)
    for label in np.unique(labels):
        members = labels == label
        yield _Cluster(seconds[members] @ embeddings[members], float(seconds[members].sum()))


def require_packages() -> None:
    """Raise an error that says how to install the extra, if it is missing."""
    for package in ("scipy", "onnxruntime", "onnx"):
        if find_spec(package) is None:
            raise BackendUnavailable(
                f"{package} is not installed, which telling speakers apart needs: {install_hint('speakers')}"
            )


def agglomerated(embeddings: Matrix, cut: float) -> NDArray[np.int64]:
    """Return the cluster of each embedding; the mean cosine distance between any two clusters is above the cut."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    labels: NDArray[np.int64] = fcluster(linkage(pdist(embeddings, "cosine"), "average"), cut, "distance")
    return labels


def _joined(clusters: Sequence[_Cluster], fewest: int, least_similarity: float) -> list[_Cluster]:
    """Join the two most similar clusters, again and again, while they are similar enough and more than the fewest."""
    left: dict[int, _Cluster] = dict(enumerate(clusters))
    centroids = np.stack([centroid(cluster.total) for cluster in clusters])
    similarities = centroids @ centroids.T
    np.fill_diagonal(similarities, -np.inf)
    while len(left) > fewest:
        first, second = sorted(divmod(int(similarities.argmax()), len(clusters)))
        if similarities[first, second] < least_similarity:
            break
        other = left.pop(second)
        left[first] = _Cluster(left[first].total + other.total, left[first].seconds + other.seconds)
        centroids[first] = centroid(left[first].total)
        joined = np.full(len(clusters), -np.inf)
        others = [index for index in left if index != first]
        joined[others] = centroids[others] @ centroids[first]
        similarities[first], similarities[:, first] = joined, joined
        similarities[second], similarities[:, second] = -np.inf, -np.inf
    return list(left.values())


def _assign(pieces: Sequence[Piece], centroids: Matrix, *, keep_all: bool) -> Voices:
    """Give each piece to a voice, and make the voices anew of their pieces."""
    embeddings = np.stack([piece.embedding for piece in pieces]).astype(np.float64)
    weights = np.array([piece.embedded_s for piece in pieces])
    windows = np.unique([(piece.window, piece.local_speaker) for piece in pieces], axis=0, return_inverse=True)[
        1
    ]
    labels = _nearest(embeddings, weights, windows, centroids)
    seconds = np.bincount(labels, [piece.seconds for piece in pieces], minlength=len(centroids))
    kept = np.flatnonzero((seconds > 0) if keep_all else (seconds >= min(MIN_VOICE_S, seconds.max())))
    sums = np.stack([weights[labels == voice] @ embeddings[labels == voice] for voice in kept])
    centroids = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return Voices(_nearest(embeddings, weights, windows, centroids), centroids)


def _nearest(
    embeddings: Matrix | Floats, weights: Matrix, windows: NDArray[np.int64], centroids: Matrix
) -> NDArray[np.int64]:
    """Return the voice of each piece: the most similar one to it, and to the local speaker that it is of."""
    similarities = embeddings @ centroids.T
    windows = windows.ravel()
    totals = np.zeros((int(windows.max()) + 1, len(centroids)))
    np.add.at(totals, windows, similarities * weights[:, None])
    means = totals / np.bincount(windows, weights)[:, None]
    labels: NDArray[np.int64] = (similarities + WINDOW_WEIGHT * means[windows]).argmax(axis=1)
    return labels


def find_turns(speech: SpeechPieces, pieces: Sequence[Piece], labels: NDArray[np.int64]) -> list[VoiceTurn]:
    """Return the turns of the voices with which pieces are labelled, in order of their start; two may overlap."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    of_speaker: dict[tuple[int, int], list[tuple[Run, int]]] = defaultdict(list)
    for piece, label in zip(pieces, labels.tolist(), strict=True):
        of_speaker[piece.window, piece.local_speaker].append(((piece.start, piece.end), label))
    for (window, speaker), found in of_speaker.items():
        activity, decided = speech.activity(window)
        offset = window * HOP_FRAMES
        for voice, stretches in nearest_runs(activity[:, speaker], decided, *zip(*found, strict=True)):
            spans[voice] += [(offset + start, offset + end) for start, end in stretches]
    turns = [
        (start_s, end_s, voice)
        for voice, of_voice in spans.items()
        for start_s, end_s in join_spans(sorted(of_voice), speech.n_samples / SAMPLE_RATE)
    ]
    return sorted(turns)


def join_spans(spans: Sequence[tuple[int, int]], duration_s: float) -> list[Stretch]:
    """Return spans of frames in seconds, joined over short pauses."""
    # A frame stands for the time around its centre, half a step to both sides.
    shift = FIRST_CENTRE_SAMPLES - STEP_SAMPLES / 2
    stretches = (
        (
            (start * STEP_SAMPLES + shift) / SAMPLE_RATE if start else 0.0,
            min(duration_s, (end * STEP_SAMPLES + shift) / SAMPLE_RATE),
        )
        for start, end in spans
    )
    return [(start_s, end_s) for start_s, end_s in join_over_pauses(stretches, MAX_PAUSE_S) if start_s < end_s]


def join_over_pauses(stretches: Iterable[Stretch], max_pause_s: float) -> list[Stretch]:
    """Join stretches, given in the order of their start, over pauses of up to so many seconds; overlapping ones too."""
    joined: list[Stretch] = []
    for start_s, end_s in stretches:
        if joined and start_s <= joined[-1][1] + max_pause_s:
            joined[-1] = joined[-1][0], max(joined[-1][1], end_s)
        else:
            joined.append((start_s, end_s))
    return joined

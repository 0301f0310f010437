"""Incremental clustering: the voices of a stream, which are known by what was said longer ago than the delay.

A voice is the sum of its embeddings. Pieces that are younger than the delay are clustered anew each time, with these
voices as anchors: a piece is of the most similar voice, unless it is similar to none and there is enough of its kind to
found another. The constants were chosen on conversations made of every second speaker of the recordings
(docs/decisions/speakers.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from harken.contract import Floats
from harken.speakers.clustering import MIN_RELIABLE_S, Matrix, agglomerated
from harken.speakers.pieces import FRAMES_PER_SECOND, Run
from harken.speakers.voices import letters

SAME_SPEAKER = 0.4
"""Cosine similarity to a voice from which a piece founds no other."""
SAME_VOICE = 0.55
"""Cosine similarity of two voices from which they are one."""
MAX_DISTANCE = 0.55
"""Mean cosine distance up to which pieces found a voice together."""
MIN_FOUNDING_S = 2.0
"""Least speech of a new voice."""


@dataclass(slots=True)
class LivePiece:
    """A piece of speech of one voice that is not too old to change.

    Attributes
    ----------
    spans : list of Run
        Frames of the stream that it labels, in order of time.
    embedded_s : float
        Seconds of speech that were embedded.
    embedding : ndarray of shape (192,), float32
        Unit length.
    speaker : str
        Name of its voice.
    settled_s : float
        Seconds that are too old to change, of a piece that is kept for them; else 0.
    """

    spans: list[Run]
    embedded_s: float
    embedding: Floats
    speaker: str = ""
    settled_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Speech that it labels, in seconds."""
        return sum(end - start for start, end in self.spans) / FRAMES_PER_SECOND


@dataclass(slots=True)
class _Voice:
    name: str
    total: Matrix
    """Sum of its embeddings, each times its seconds."""
    is_known: bool
    is_heard: bool

    @property
    def centroid(self) -> Matrix:
        return self.total / max(float(np.linalg.norm(self.total)), 1e-12)


class LiveVoices:
    """The voices of a stream.

    Parameters
    ----------
    most : int
        Greatest number of voices that are heard.
    known : mapping of str to ndarray of shape (192,)
        Embeddings of known people by their names, from the start.
    max_strangers : int
        Settled pieces like no voice that are kept: they help to found one, though they keep the name they have.
    """

    def __init__(self, most: int, known: Mapping[str, Floats], max_strangers: int) -> None:
        self._most = most
        self._voices = [
            _Voice(name, each.astype(np.float64), is_known=True, is_heard=False) for name, each in known.items()
        ]
        self._names = {*known}
        self._strangers: deque[LivePiece] = deque(maxlen=max_strangers)

    def learn(self, piece: LivePiece, seconds: float) -> None:
        """Add some seconds of a piece to the voice whose name it has; the first ones of a name found the voice."""
        total = seconds * piece.embedding.astype(np.float64)
        for voice in self._voices:
            if voice.name == piece.speaker:
                if self._strangers.maxlen and float(voice.centroid @ piece.embedding) < SAME_SPEAKER:
                    self._strangers.append(replace(piece, settled_s=seconds))
                    return
                voice.total, voice.is_heard = voice.total + total, True
                break
        else:
            self._voices.append(_Voice(piece.speaker, total, is_known=False, is_heard=True))
            self._names.add(piece.speaker)
        self._join_voices()

    def name(self, pieces: Sequence[LivePiece]) -> None:
        """Give pieces, in order of time, the names of their voices."""
        if not pieces:
            return
        embeddings = np.stack([piece.embedding for piece in pieces]).astype(np.float64)
        seconds = np.array([piece.seconds for piece in pieces])
        known = np.array([voice.centroid for voice in self._voices]).reshape(-1, embeddings.shape[1])
        heard = np.array([voice.is_heard for voice in self._voices], np.bool_)
        similarities = embeddings @ known.T
        similar = similarities >= SAME_SPEAKER
        strangers = [*self._like_nobody(self._strangers), *self._like_nobody(pieces)]
        new = [*_new_voices(strangers)][: max(0, self._most - int(heard.sum()))]
        nobody = ~(similar | heard).any(axis=1)
        if not new and nobody.any():
            new = [seconds[nobody] @ embeddings[nobody]]
        names = [voice.name for voice in self._voices] + [*self._free_names(len(new))]
        centroids = np.array([total / np.linalg.norm(total) for total in new]).reshape(-1, known.shape[1])
        # Somebody known who has not been heard yet is not the most similar by chance.
        similarities = np.hstack([np.where(similar | heard, similarities, -2.0), embeddings @ centroids.T])
        for piece, label in zip(pieces, similarities.argmax(axis=1).tolist(), strict=True):
            piece.speaker = names[label]

    def _like_nobody(self, pieces: Iterable[LivePiece]) -> Iterator[LivePiece]:
        """Yield the pieces that are long enough to found a voice, and like none."""
        for piece in pieces:
            similarities = (float(voice.centroid @ piece.embedding) for voice in self._voices)
            if piece.embedded_s >= MIN_RELIABLE_S and max(similarities, default=-1.0) < SAME_SPEAKER:
                yield piece

    def _free_names(self, n: int) -> Iterator[str]:
        free = (name for name in map(letters, count()) if name not in self._names)
        return (next(free) for _ in range(n))

    def _join_voices(self) -> None:
        """Join voices that have turned out alike; the older one's name stays."""
        centroids = np.stack([voice.centroid for voice in self._voices])
        alike = np.argwhere(np.triu(centroids @ centroids.T, 1) >= SAME_VOICE)
        for first, second in alike.tolist()[:1]:
            if not self._voices[second].is_known:
                self._voices[first].total = self._voices[first].total + self._voices.pop(second).total


def _new_voices(strangers: Sequence[LivePiece]) -> Iterator[Matrix]:
    """Yield the sum of embeddings of each large cluster with a piece that has not settled, in order of appearance."""
    embeddings = np.array([piece.embedding for piece in strangers], np.float64)
    labels = agglomerated(embeddings, MAX_DISTANCE) if len(strangers) > 1 else np.ones(len(strangers))
    seconds = np.array([piece.settled_s or piece.seconds for piece in strangers])
    settled = np.array([piece.settled_s > 0 for piece in strangers])
    for label in dict.fromkeys(labels.tolist()):
        members = labels == label
        if seconds[members].sum() >= MIN_FOUNDING_S and not settled[members].all():
            yield seconds[members] @ embeddings[members]

"""Diarization of live streams: who speaks when, known at once, corrected for a few seconds, and settled then.

Each second a window of the last ten is segmented. It decides on what is new in it, and once more on the end of what the
window before it has decided on, which now has more around it. What is older than the delay never changes; of that only
the voices are kept, and the turns of the last minute.

A voice is the sum of its embeddings. Pieces that are younger than the delay are clustered anew each time, with these
voices as anchors: a piece is of the most similar voice, unless it is similar to none and there is enough of its kind to
found another. The constants were chosen on conversations made of every second speaker of the recordings
(docs/decisions/speakers.md).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from harken.contract import Floats
from harken.errors import OptionError
from harken.option_types import checked_value
from harken.results import SpeakerTurn
from harken.speakers.clustering import MIN_RELIABLE_S, Matrix, agglomerated, centroid, join_spans
from harken.speakers.embedding import EmbeddingModel
from harken.speakers.pieces import (
    FRAMES_PER_SECOND,
    N_FRAMES,
    N_LOCAL_SPEAKERS,
    STEP_SAMPLES,
    WINDOW_SAMPLES,
    Activity,
    Run,
    SegmentationModel,
    nearest_runs,
    plan_pieces,
)
from harken.speakers.voices import letters

DEFAULT_DELAY_S, MAX_DELAY_S = 5.0, 60.0
SHORT_DELAY_S = 4.0
"""Delay below which nobody new says enough for a voice before it settles, so that settled pieces must help."""
MAX_STRANGERS = 20
"""The most of these pieces."""
HOP_FRAMES = round(FRAMES_PER_SECOND)
"""Frames from the end of a window to that of the next."""
REVISED_FRAMES = round(FRAMES_PER_SECOND)
"""Frames at the end of a window on which the next one decides again."""
WINDOW_FRAMES = WINDOW_SAMPLES // STEP_SAMPLES
HISTORY_FRAMES = round(60 * FRAMES_PER_SECOND)
"""Settled frames whose turns are kept: an utterance of 30 s gets its words at its end."""
SAME_SPEAKER = 0.4
"""Cosine similarity to a voice from which a piece founds no other."""
SAME_VOICE = 0.55
"""Cosine similarity of two voices from which they are one."""
MAX_DISTANCE = 0.55
"""Mean cosine distance up to which pieces found a voice together."""
MIN_FOUNDING_S = 2.0
"""Least speech of a new voice."""


def checked_delay(delay_s: float) -> float:
    """Return the seconds after which nothing that was said about the speakers of a stream changes any more.

    Raises
    ------
    OptionError
        If they are not from 1 to 60.
    """
    delay_s = checked_value("speaker_delay", delay_s, float)
    if not 1 <= delay_s <= MAX_DELAY_S:
        raise OptionError("speaker_delay", delay_s, f"seconds from 1 to {MAX_DELAY_S:.0f}")
    return delay_s


class LiveDiarization:
    """The speakers of a live stream and their turns, as far as its samples have been fed.

    What it says does not depend on how the samples are split into blocks.

    Parameters
    ----------
    segmentation : SegmentationModel
    embedding : EmbeddingModel
    delay_s : float
        Seconds after which nothing changes any more.
    most : int
        Greatest number of speakers.
    known : mapping of str to ndarray of shape (192,)
        Embeddings of known people by their names.
    """

    def __init__(
        self,
        segmentation: SegmentationModel,
        embedding: EmbeddingModel,
        *,
        delay_s: float,
        most: int,
        known: Mapping[str, Floats],
    ) -> None:
        self._segmentation, self._embedding = segmentation, embedding
        self._delay_frames = round(delay_s * FRAMES_PER_SECOND)
        self._voices = LiveVoices(most, known, MAX_STRANGERS if delay_s < SHORT_DELAY_S else 0)
        self._samples = np.empty(0, np.float32)
        self._first_frame = 0  # of these samples
        self._frames = 0  # heard by a window
        self._settled_frames = 0
        self._settled: list[tuple[int, int, str]] = []
        self._pieces: list[LivePiece] = []

    @property
    def missing_samples(self) -> int:
        """Number of samples until there is news."""
        return (self._frames + HOP_FRAMES - self._first_frame) * STEP_SAMPLES - len(self._samples)

    @property
    def settled_s(self) -> float:
        """Time up to which nothing changes any more."""
        return self._settled_frames / FRAMES_PER_SECOND

    def feed(self, samples: Floats) -> None:
        """Take the next samples, mono float32 at 16 kHz."""
        while len(samples) >= (missing := self.missing_samples):
            self._samples = np.concatenate([self._samples, samples[:missing]])
            samples = samples[missing:]
            self._hear(self._frames + HOP_FRAMES)
        self._samples = np.concatenate([self._samples, samples])

    def flush(self) -> None:
        """End the stream: decide on its last part, too."""
        frames = self._first_frame + len(self._samples) // STEP_SAMPLES
        if frames > self._frames:
            self._hear(frames)

    @property
    def turns(self) -> tuple[SpeakerTurn, ...]:
        """Turns of the last minute, in order of their start; those of two speakers may overlap."""
        spans: dict[str, list[Run]] = defaultdict(list)
        for start, end, speaker in self._settled:
            spans[speaker].append((start, end))
        for piece in self._pieces:
            spans[piece.speaker] += piece.spans
        heard_s = self._frames / FRAMES_PER_SECOND
        turns = [
            SpeakerTurn(start_s=start_s, end_s=end_s, speaker=speaker)
            for speaker, of_speaker in spans.items()
            for start_s, end_s in join_spans(sorted(of_speaker), heard_s)
        ]
        return tuple(sorted(turns, key=lambda turn: (turn.start_s, turn.end_s)))

    def _hear(self, frames: int) -> None:
        """Take a window that ends with these frames of the stream."""
        self._settle(frames - self._delay_frames)
        start = max(self._first_frame, frames - WINDOW_FRAMES)
        window = np.zeros(WINDOW_SAMPLES, np.float32)
        heard = self._samples[(start - self._first_frame) * STEP_SAMPLES :]
        window[: (frames - start) * STEP_SAMPLES] = heard[: (frames - start) * STEP_SAMPLES]
        first = max(self._frames - REVISED_FRAMES, self._settled_frames, 0)
        self._withdraw(first)
        activity = self._segmentation.activities(window[None])[0]
        self._pieces += self._find_pieces(
            window, activity, start, (first - start, min(frames - start, N_FRAMES))
        )
        self._pieces.sort(key=lambda piece: piece.spans[0])
        self._voices.name(self._pieces)
        self._frames = frames
        kept = max(0, frames + HOP_FRAMES - WINDOW_FRAMES - self._first_frame)
        self._samples = self._samples[kept * STEP_SAMPLES :]
        self._first_frame += kept

    def _find_pieces(
        self, window: Floats, activity: Activity, offset: int, decided: Run
    ) -> Iterator[LivePiece]:
        """Yield the pieces that label the decided frames of a window."""
        planned = [
            (embedded, spans)
            for speaker in range(N_LOCAL_SPEAKERS)
            for embedded, spans in _spans(activity, speaker, decided)
        ]
        embeddings = self._embedding.embed(
            [window[start * STEP_SAMPLES : end * STEP_SAMPLES] for (start, end), _ in planned]
        )
        for ((start, end), spans), embedding in zip(planned, embeddings, strict=True):
            yield LivePiece(
                [(first + offset, behind + offset) for first, behind in spans],
                (end - start) / FRAMES_PER_SECOND,
                embedding,
            )

    def _settle(self, frames: int) -> None:
        """Never change what is before a frame, and let the voices learn from it."""
        for piece in self._pieces:
            before, piece.spans = _divided(piece.spans, frames)
            if before:
                self._settled += [(start, end, piece.speaker) for start, end in before]
                self._voices.learn(piece, sum(end - start for start, end in before) / FRAMES_PER_SECOND)
        self._pieces = [piece for piece in self._pieces if piece.spans]
        self._settled_frames = max(self._settled_frames, frames)
        self._settled = [span for span in self._settled if span[1] > self._settled_frames - HISTORY_FRAMES]

    def _withdraw(self, frame: int) -> None:
        """Take back what was said from a frame on."""
        for piece in self._pieces:
            piece.spans = _divided(piece.spans, frame)[0]
        self._pieces = [piece for piece in self._pieces if piece.spans]


def _spans(activity: Activity, speaker: int, decided: Run) -> Iterator[tuple[Run, list[Run]]]:
    """Yield what is embedded of a local speaker, and the decided frames that each embedding labels.

    If no piece is in the decided frames, the last one before them counts.
    """
    if not activity[slice(*decided), speaker].any():
        return
    pieces = _pieces_of(activity, speaker, decided) or _pieces_of(activity, speaker, (0, decided[1]))[-1:]
    if pieces:
        of_speaker = [piece for piece, _ in pieces]
        for index, spans in nearest_runs(activity[:, speaker], decided, of_speaker, range(len(pieces))):
            yield pieces[index][1], spans


def _pieces_of(activity: Activity, speaker: int, decided: Run) -> list[tuple[Run, Run]]:
    """Return the pieces of a local speaker, and what is embedded of each."""
    return [(piece, embedded) for who, piece, embedded in plan_pieces(activity, decided) if who == speaker]


def _divided(spans: list[Run], frame: int) -> tuple[list[Run], list[Run]]:
    """Return the parts of spans before a frame, and the others."""
    before = [(start, min(end, frame)) for start, end in spans if start < frame]
    return before, [(max(start, frame), end) for start, end in spans if end > frame]


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
        own = next((voice for voice in self._voices if voice.name == piece.speaker), None)
        if own is None:
            self._voices.append(_Voice(piece.speaker, total, is_known=False, is_heard=True))
            self._names.add(piece.speaker)
        elif self._strangers.maxlen and float(centroid(own.total) @ piece.embedding) < SAME_SPEAKER:
            self._strangers.append(replace(piece, settled_s=seconds))
            return
        else:
            own.total, own.is_heard = own.total + total, True
        self._join_voices()

    def name(self, pieces: Sequence[LivePiece]) -> None:
        """Give pieces, in order of time, the names of their voices."""
        if not pieces:
            return
        embeddings = np.stack([piece.embedding for piece in pieces]).astype(np.float64)
        seconds = np.array([piece.seconds for piece in pieces])
        known = np.array([centroid(voice.total) for voice in self._voices]).reshape(-1, embeddings.shape[1])
        heard = np.array([voice.is_heard for voice in self._voices], np.bool_)
        similarities = embeddings @ known.T
        similar = similarities >= SAME_SPEAKER
        strangers = [*self._like_nobody(self._strangers), *self._like_nobody(pieces)]
        new = [*_new_voices(strangers)][: max(0, self._most - int(heard.sum()))]
        nobody = ~(similar | heard).any(axis=1)
        if not new and nobody.any():
            new = [seconds[nobody] @ embeddings[nobody]]
        names = [voice.name for voice in self._voices] + [*self._free_names(len(new))]
        centroids = np.array([centroid(total) for total in new]).reshape(-1, known.shape[1])
        # Somebody known who has not been heard yet is not the most similar by chance.
        similarities = np.hstack([np.where(similar | heard, similarities, -2.0), embeddings @ centroids.T])
        for piece, label in zip(pieces, similarities.argmax(axis=1).tolist(), strict=True):
            piece.speaker = names[label]

    def _like_nobody(self, pieces: Iterable[LivePiece]) -> Iterator[LivePiece]:
        """Yield the pieces that are long enough to found a voice, and like none."""
        for piece in pieces:
            similarities = (float(centroid(voice.total) @ piece.embedding) for voice in self._voices)
            if piece.embedded_s >= MIN_RELIABLE_S and max(similarities, default=-1.0) < SAME_SPEAKER:
                yield piece

    def _free_names(self, n: int) -> Iterator[str]:
        free = (name for name in map(letters, count()) if name not in self._names)
        return (next(free) for _ in range(n))

    def _join_voices(self) -> None:
        """Join voices that have turned out alike; the older one's name stays."""
        centroids = np.stack([centroid(voice.total) for voice in self._voices])
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

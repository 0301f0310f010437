"""Pieces of speech of one voice each, with embeddings, found while the samples of a recording stream in.

A model segments windows of ten seconds: which of up to three local speakers is active in each frame
(pyannote/segmentation-3.0; Plaquet and Bredin 2023, "Powerset multi-class cross entropy loss for neural speaker
diarization"). Windows begin every five seconds, and each decides on the five in its middle. Where one local speaker
speaks alone, that stretch is cut into pieces of one to two seconds: long enough to tell voices apart, and short enough
that a change of speaker which the segmentation missed spoils few of them. Kept are the embeddings and who is active in
each frame, three bits: 5 MB for an hour of speech.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.runtimes import OnnxRuntimeGraph
from harken.contract import Floats
from harken.errors import CheckpointError, HarkenError
from harken.speakers.embedding import EmbeddingModel
from harken.types import SAMPLE_RATE

WINDOW_SAMPLES = 10 * SAMPLE_RATE
"""Samples of the windows that the model was trained on."""
N_LOCAL_SPEAKERS = 3
STEP_SAMPLES = 270
"""Samples from one frame to the next."""
N_FRAMES = 589
"""Frames of a window."""
FIRST_CENTRE_SAMPLES = 495.5
"""Centre of the first frame, half of the 991 samples that it sees."""
POWERSET = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], np.bool_)
"""Active local speakers of each class."""

HOP_FRAMES = 296
"""Frames from the start of a window to that of the next: five seconds."""
MARGIN_FRAMES = 147
"""Frames at the start of a window, and at its end, on which its neighbours decide."""
FRAMES_PER_SECOND = SAMPLE_RATE / STEP_SAMPLES
MAX_PIECE_FRAMES = round(2.4 * FRAMES_PER_SECOND)
MIN_EMBEDDED_FRAMES = round(1.6 * FRAMES_PER_SECOND)
"""A shorter piece is embedded with what the same speaker says beside it, if there is more."""
MAX_PAUSE_FRAMES = round(0.2 * FRAMES_PER_SECOND)
"""Longest pause within a piece."""
MIN_PIECE_FRAMES = 3
MAX_BATCH_WINDOWS = 4
"""Windows that are segmented at once; more take memory, and hardly less time."""

Activity = NDArray[np.bool_]
"""Shape (N_FRAMES, N_LOCAL_SPEAKERS): True where a local speaker speaks."""
Run = tuple[int, int]
"""First frame, and the one behind the last."""


class SegmentationModel:
    """The segmentation model in ONNX Runtime.

    Parameters
    ----------
    path : Path
        The ONNX file.
    threads : int

    Raises
    ------
    CheckpointError
        If the file is missing or damaged, or holds another model.
    """

    def __init__(self, path: Path, threads: int) -> None:
        try:
            self._graph = OnnxRuntimeGraph(path, threads)
            self.activities(np.zeros((1, WINDOW_SAMPLES), np.float32))
        except (HarkenError, MemoryError):
            raise
        except Exception as error:  # the runtime has no class of its own for them
            raise CheckpointError(
                f"{path}: is damaged, or not segmentation-3.0 ({str(error).splitlines()[0][:200]})"
            ) from error

    def activities(self, windows: Floats) -> NDArray[np.bool_]:
        """Return who is active when.

        Parameters
        ----------
        windows : ndarray of shape (n, WINDOW_SAMPLES), float32, 16 kHz

        Returns
        -------
        ndarray of shape (n, N_FRAMES, N_LOCAL_SPEAKERS), bool
            Speakers have no order, and none from one window to the next.
        """
        log_probabilities = np.empty((len(windows), N_FRAMES, len(POWERSET)), np.float32)
        self._graph({"input": windows[:, None]}, {"output": log_probabilities})
        activities: NDArray[np.bool_] = POWERSET[log_probabilities.argmax(axis=-1)]
        return activities


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of speech of one voice.

    Attributes
    ----------
    window : int
        Index of the window that it was found in.
    local_speaker : int
        0 to 2, the column of the window's activity.
    start, end : int
        First frame in the window, and the one behind the last.
    embedded_s : float
        Seconds of speech that were embedded.
    embedding : ndarray of shape (192,), float32
        Unit length.
    """

    window: int
    local_speaker: int
    start: int
    end: int
    embedded_s: float
    embedding: Floats

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end - self.start) / FRAMES_PER_SECOND


class SpeechPieces:
    """The pieces of one recording, found while its samples are fed.

    Attributes
    ----------
    found : list of Piece
        In order of their windows.
    n_samples : int
        Samples of the recording so far.
    """

    def __init__(self, segmentation: SegmentationModel, embedding: EmbeddingModel) -> None:
        self._segmentation, self._embedding = segmentation, embedding
        self._buffer = np.empty(0, np.float32)
        self._activities: list[NDArray[np.uint8]] = []
        self._ended = False
        self.found: list[Piece] = []
        self.n_samples = 0

    @property
    def n_windows(self) -> int:
        """Number of windows so far."""
        return len(self._activities)

    def feed(self, samples: Floats) -> None:
        """Take the next samples, mono float32 at 16 kHz, and find the pieces in the windows that they complete."""
        self.n_samples += len(samples)
        self._buffer = np.concatenate([self._buffer, samples])
        hop = HOP_FRAMES * STEP_SAMPLES
        while n_complete := max(0, (len(self._buffer) - WINDOW_SAMPLES) // hop + 1):
            starts = range(0, min(n_complete, MAX_BATCH_WINDOWS) * hop, hop)
            self._add_windows(np.stack([self._buffer[start : start + WINDOW_SAMPLES] for start in starts]))
            self._buffer = self._buffer[starts.stop :]  # at once, as a signal may end the recording here

    def flush(self) -> None:
        """End the recording: what no window has decided on yet is the end of a last one, padded with silence."""
        decided = MARGIN_FRAMES * STEP_SAMPLES if self.n_windows else 0
        self._ended = len(self._buffer) > decided
        if self._ended:
            window = np.zeros((1, WINDOW_SAMPLES), np.float32)
            rest = self._buffer[:WINDOW_SAMPLES]  # more of them wait where a signal has ended the recording
            window[0, : len(rest)] = rest
            self._add_windows(window)
        self._buffer = np.empty(0, np.float32)

    def activity(self, window: int) -> tuple[Activity, Run]:
        """Return who is active in a window, and the frames on which it decides."""
        bits = np.unpackbits(self._activities[window], count=N_FRAMES * N_LOCAL_SPEAKERS)
        last = self._ended and window == self.n_windows - 1
        return bits.reshape(N_FRAMES, N_LOCAL_SPEAKERS).astype(np.bool_), _decided_frames(window, last)

    def _add_windows(self, windows: Floats) -> None:
        activities = self._segmentation.activities(windows)
        planned = [
            (self.n_windows + position, speaker, piece, embedded)
            for position, activity in enumerate(activities)
            for speaker, piece, embedded in plan_pieces(
                activity, _decided_frames(self.n_windows + position, self._ended)
            )
        ]
        embeddings = self._embedding.embed(
            [
                windows[window - self.n_windows, start * STEP_SAMPLES : end * STEP_SAMPLES]
                for window, _, _, (start, end) in planned
            ]
        )
        self._activities += [np.packbits(activity) for activity in activities]
        self.found += [
            Piece(window, speaker, *piece, (embedded[1] - embedded[0]) / FRAMES_PER_SECOND, embedding)
            for (window, speaker, piece, embedded), embedding in zip(planned, embeddings, strict=True)
        ]


def runs(active: NDArray[np.bool_]) -> list[Run]:
    """Return the stretches of True."""
    edges = np.flatnonzero(np.diff(active.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def nearest_runs(
    active: NDArray[np.bool_], decided: Run, pieces: Sequence[Run], labels: Sequence[int]
) -> Iterator[tuple[int, list[Run]]]:
    """Yield the label of each piece, and the decided frames of which such a piece is the nearest.

    Where others speak, too, there are no pieces: there the nearest one of the same local speaker counts.

    Parameters
    ----------
    active : ndarray of shape (N_FRAMES,), bool
        When the local speaker speaks.
    decided : Run
    pieces : sequence of Run
    labels : sequence of int
    """
    frames = np.flatnonzero(active[slice(*decided)]) + decided[0]
    starts, ends = np.array(pieces).T
    nearest = np.maximum(starts - frames[:, None], frames[:, None] - ends + 1).argmin(axis=1)
    chosen = np.array(labels)[nearest]
    for label in np.unique(chosen).tolist():
        of_label = np.zeros(decided[1], np.bool_)
        of_label[frames[chosen == label]] = True
        yield label, runs(of_label)


def _decided_frames(window: int, last: bool) -> Run:
    return MARGIN_FRAMES * bool(window), N_FRAMES if last else MARGIN_FRAMES + HOP_FRAMES


def plan_pieces(activity: Activity, decided: Run) -> list[tuple[int, Run, Run]]:
    """Return the pieces of a window: the local speaker, the piece, and what is embedded of its speech."""
    n_active = activity.sum(axis=1)
    planned = []
    for speaker in range(N_LOCAL_SPEAKERS):
        for run in _joined(runs(activity[:, speaker] & (n_active == 1)), n_active > 0):
            start, end = max(run[0], decided[0]), min(run[1], decided[1])
            if end - start >= MIN_PIECE_FRAMES:
                planned += [(speaker, piece, _embedded(piece, run)) for piece in _divided(start, end)]
    return planned


def _joined(stretches: list[Run], anybody: NDArray[np.bool_]) -> list[Run]:
    """Join stretches over short pauses in which nobody speaks."""
    joined: list[Run] = []
    for start, end in stretches:
        before = joined[-1] if joined else None
        if before and start - before[1] < MAX_PAUSE_FRAMES and not anybody[before[1] : start].any():
            joined[-1] = before[0], end
        else:
            joined.append((start, end))
    return joined


def _divided(start: int, end: int) -> list[Run]:
    """Divide a stretch into pieces of equal length."""
    count = -(-(end - start) // MAX_PIECE_FRAMES)
    edges = [start + (end - start) * index // count for index in range(count + 1)]
    return list(pairwise(edges))


def _embedded(piece: Run, run: Run) -> Run:
    """Return a piece, extended to both sides within its run up to the least length."""
    missing = max(0, MIN_EMBEDDED_FRAMES - (piece[1] - piece[0]))
    start = max(run[0], min(piece[0] - missing // 2, run[1] - MIN_EMBEDDED_FRAMES))
    return min(start, piece[0]), max(piece[1], min(run[1], start + MIN_EMBEDDED_FRAMES))

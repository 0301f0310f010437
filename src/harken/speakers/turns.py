"""Turns: who speaks when, from the activity of local speakers and the voices of their pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harken.speakers.pieces import HOP_FRAMES, Piece, SpeechPieces, runs
from harken.speakers.segmentation import FIRST_CENTRE_SAMPLES, STEP_SAMPLES
from harken.types import SAMPLE_RATE

MAX_PAUSE_S = 0.3
"""Longest pause within a turn, as in NIST's evaluations of diarization."""

VoiceTurn = tuple[float, float, int]
"""Start and end in seconds, and the index of the voice."""


def find_turns(speech: SpeechPieces, pieces: Sequence[Piece], labels: NDArray[np.int64]) -> list[VoiceTurn]:
    """Return the turns of each voice, in order of their start; those of two voices may overlap.

    Parameters
    ----------
    speech : SpeechPieces
        Whose activity counts.
    pieces : sequence of Piece
    labels : ndarray of shape (pieces,), int
        Voice of each piece.
    """
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for window, by_speaker in _pieces_by_window(pieces, labels).items():
        activity, (first, behind) = speech.activity(window)
        for speaker, (starts, ends, voices) in by_speaker.items():
            frames = np.flatnonzero(activity[first:behind, speaker]) + first
            # Where others speak, too, there are no pieces: the nearest one of the same local speaker counts.
            distances = np.maximum(starts - frames[:, None], frames[:, None] - ends + 1)
            chosen = voices[distances.argmin(axis=1)]
            for voice in np.unique(chosen).tolist():
                active = np.zeros(behind, np.bool_)
                active[frames[chosen == voice]] = True
                offset = window * HOP_FRAMES
                spans[voice] += [(offset + start, offset + end) for start, end in runs(active)]
    turns = [
        (start_s, end_s, voice)
        for voice, of_voice in spans.items()
        for start_s, end_s in join_spans(sorted(of_voice), speech.n_samples / SAMPLE_RATE)
    ]
    return sorted(turns)


def _pieces_by_window(
    pieces: Sequence[Piece], labels: NDArray[np.int64]
) -> dict[int, dict[int, tuple[NDArray[np.int64], ...]]]:
    """Return starts, ends and voices of the pieces of each local speaker of each window."""
    rows: dict[int, dict[int, list[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(list))
    for piece, label in zip(pieces, labels.tolist(), strict=True):
        rows[piece.window][piece.local_speaker].append((piece.start, piece.end, label))
    return {
        window: {speaker: tuple(np.array(of_speaker).T) for speaker, of_speaker in by_speaker.items()}
        for window, by_speaker in rows.items()
    }


def join_spans(spans: Sequence[tuple[int, int]], duration_s: float) -> list[tuple[float, float]]:
    """Return spans of frames in seconds, joined over short pauses."""
    # A frame stands for the time around its centre, half a step to both sides.
    shift = FIRST_CENTRE_SAMPLES - STEP_SAMPLES / 2
    joined: list[tuple[float, float]] = []
    for start, end in spans:
        start_s = (start * STEP_SAMPLES + shift) / SAMPLE_RATE if start else 0.0
        end_s = min(duration_s, (end * STEP_SAMPLES + shift) / SAMPLE_RATE)
        if joined and start_s - joined[-1][1] < MAX_PAUSE_S:
            joined[-1] = joined[-1][0], max(joined[-1][1], end_s)
        elif start_s < end_s:
            joined.append((start_s, end_s))
    return joined

"""Errors of speakers: who speaks when, and who said which words.

Names of speakers mean nothing by themselves: those of the hypothesis are mapped one to one to those of the reference,
so that the time in which both speak is longest, or the wrong words are fewest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from harken.errors import BackendUnavailable, install_hint
from harken.evaluation.error_rate import Counted, ErrorCounts, align_words, count_word_errors, normalizer
from harken.results import SpeakerTurn

Turns = Sequence[SpeakerTurn]
Matrix = NDArray[np.float64]


Said = tuple[str, str]
"""A speaker and some words, in the order in which they were said."""


@dataclass(frozen=True, slots=True)
class Errors(Counted):
    """Errors, and the number of what could be wrong."""

    errors: float = 0
    reference_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiarizationErrors(Counted):
    """Seconds of speech and of errors, whose rate is the DER; where two speak at once, both count.

    Attributes
    ----------
    speech_s : float
        Speech in the reference.
    missed_s : float
        Speech for which the hypothesis has too few speakers.
    false_alarm_s : float
        Speech for which the hypothesis has too many speakers, or which is none.
    confused_s : float
        Speech that the hypothesis gives to another speaker.
    """

    speech_s: float = 0.0
    missed_s: float = 0.0
    false_alarm_s: float = 0.0
    confused_s: float = 0.0

    @property
    def errors(self) -> float:
        """Sum of missed, false and confused speech, in seconds."""
        return self.missed_s + self.false_alarm_s + self.confused_s

    @property
    def reference_length(self) -> float:
        """Speech in the reference, in seconds."""
        return self.speech_s


def count_diarization_errors(
    reference: Turns, hypothesis: Turns, *, collar_s: float = 0.0, overlap: bool = True
) -> DiarizationErrors:
    """Compare the turns of a hypothesis with those of the reference.

    Source: NIST, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan", section 4.1.

    Parameters
    ----------
    reference, hypothesis : sequence of SpeakerTurn
        Turns of one speaker that overlap or touch count as one.
    collar_s : float
        Time before and after each start and end of a turn of the reference that is not scored.
    overlap : bool
        Whether to score where two or more speak at once in the reference.

    Raises
    ------
    BackendUnavailable
        If the extra ``harken[speakers]`` is not installed.
    """
    reference, hypothesis = join_touching(reference), join_touching(hypothesis)
    collars = [(edge - collar_s, edge + collar_s) for edge in edges(reference)] if collar_s else []
    times = np.unique([*edges(reference), *edges(hypothesis), *chain.from_iterable(collars)])
    _, spoken = activity(reference, times)
    _, found = activity(hypothesis, times)
    seconds = np.diff(times)
    for start_s, end_s in collars:
        seconds = np.where((times[:-1] >= start_s) & (times[1:] <= end_s), 0.0, seconds)
    n_spoken, n_found = spoken.sum(axis=0), found.sum(axis=0)
    if not overlap:
        seconds = np.where(n_spoken > 1, 0.0, seconds)
    together = (spoken * seconds) @ found.T
    rows, columns = assign(-together)
    return DiarizationErrors(
        speech_s=float(n_spoken @ seconds),
        missed_s=float(np.maximum(n_spoken - n_found, 0) @ seconds),
        false_alarm_s=float(np.maximum(n_found - n_spoken, 0) @ seconds),
        confused_s=max(0.0, float(np.minimum(n_spoken, n_found) @ seconds - together[rows, columns].sum())),
    )


def jaccard_errors(reference: Turns, hypothesis: Turns) -> dict[str, float]:
    """Return the Jaccard error of each speaker of the reference.

    It is the time in which exactly one of the speaker and the mapped speaker of the hypothesis speaks, divided by the
    time in which either does; 1 for a speaker to whom none is mapped. So speakers who say little count as much as
    others. The Jaccard error rate (JER) is the mean over speakers.

    Source: Ryant et al., "The Second DIHARD Diarization Challenge" (Interspeech 2019), section 4.2.

    Raises
    ------
    BackendUnavailable
        If the extra ``harken[speakers]`` is not installed.
    """
    times = np.unique([*edges(reference), *edges(hypothesis)])
    names, spoken = activity(reference, times)
    _, found = activity(hypothesis, times)
    seconds = np.diff(times)
    together = (spoken * seconds) @ found.T
    either = (spoken @ seconds)[:, None] + (found @ seconds)[None, :] - together
    errors = 1 - together / np.maximum(either, 1e-9)
    rows, columns = assign(errors)
    return dict.fromkeys(names, 1.0) | {
        names[row]: float(errors[row, column]) for row, column in zip(rows, columns, strict=True)
    }


def edges(turns: Turns) -> list[float]:
    """Return the starts and the ends of turns."""
    return [edge for turn in turns for edge in (turn.start_s, turn.end_s)]


def activity(turns: Turns, times: Matrix) -> tuple[list[str], Matrix]:
    """Return the speakers, and for each of them 1 between two times at which it speaks, else 0."""
    names = list(dict.fromkeys(turn.speaker for turn in turns))
    active = np.zeros((len(names), max(0, len(times) - 1)))
    for turn in turns:
        first, last = np.searchsorted(times, (turn.start_s, turn.end_s))
        active[names.index(turn.speaker), first:last] = 1
    return names, active


def join_touching(turns: Iterable[SpeakerTurn]) -> list[SpeakerTurn]:
    """Join the turns of one speaker that overlap or touch; leave out those without length."""
    joined: list[SpeakerTurn] = []
    for turn in sorted(turns, key=lambda turn: (turn.speaker, turn.start_s)):
        if turn.end_s <= turn.start_s:
            continue
        before = joined[-1] if joined else None
        if before and before.speaker == turn.speaker and turn.start_s <= before.end_s:
            end_s = max(before.end_s, turn.end_s)
            joined[-1] = SpeakerTurn(start_s=before.start_s, end_s=end_s, speaker=turn.speaker)
        else:
            joined.append(turn)
    return joined


def assign(costs: Matrix) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of the one-to-one assignment with the lowest cost (the Hungarian algorithm).

    Raises
    ------
    BackendUnavailable
        If the extra ``harken[speakers]`` is not installed.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise BackendUnavailable(
            f"{error.name} is not installed, which scoring speakers needs: {install_hint('speakers')}"
        ) from error
    rows, columns = linear_sum_assignment(costs)
    return rows, columns


def count_cp_word_errors(
    reference: Sequence[Said], hypothesis: Sequence[Said], language: str | None
) -> ErrorCounts:
    """Count the word errors between all words of each speaker, for the mapping of speakers with the fewest (cpWER).

    Speakers whom the other side lacks are compared with an empty text.

    Source: Watanabe et al., "CHiME-6 Challenge" (2020), section 4.2.1: concatenated minimum-permutation word error
    rate.

    Parameters
    ----------
    reference, hypothesis : sequence of (speaker, text)
    language : str or None
        Code of the language of both, whose rules normalize the texts.
    """
    normalize = normalizer(language)
    spoken = [normalize(text) for text in join_by_speaker(reference).values()]
    found = [normalize(text) for text in join_by_speaker(hypothesis).values()]
    size = max(len(spoken), len(found))
    spoken += [""] * (size - len(spoken))
    found += [""] * (size - len(found))
    counts = [[count_word_errors(one, other) for other in found] for one in spoken]
    rows, columns = assign(
        np.array([[count.errors for count in row] for row in counts], float).reshape(size, size)
    )
    return sum((counts[row][column] for row, column in zip(rows, columns, strict=True)), ErrorCounts())


def count_speaker_errors(reference: Sequence[Said], hypothesis: Sequence[Said], language: str | None) -> Errors:
    """Count the words that have the wrong speaker (WDER), among those that the hypothesis has at all.

    Source: El Shafey, Soltau and Shafran, "Joint Speech Recognition and Speaker Diarization via Sequence Transduction"
    (Interspeech 2019), section 4.2. Where several speak at once, the words of a reference stand one turn behind the
    other, so their alignment is rough.
    """
    spoken, found = speaker_by_word(reference, language), speaker_by_word(hypothesis, language)
    pairs: dict[Said, int] = {}
    at = found_at = 0
    for chunk in align_words(" ".join(word for _, word in spoken), " ".join(word for _, word in found)):
        for one, other in zip(
            spoken[at : at + len(chunk.reference)],
            found[found_at : found_at + len(chunk.hypothesis)],
            strict=False,
        ):
            pairs[one[0], other[0]] = pairs.get((one[0], other[0]), 0) + 1
        at, found_at = at + len(chunk.reference), found_at + len(chunk.hypothesis)
    names = [list(dict.fromkeys(map(itemgetter(side), pairs))) for side in (0, 1)]
    counts = np.array([[pairs.get((one, other), 0) for other in names[1]] for one in names[0]], float)
    if not pairs:
        return Errors()
    rows, columns = assign(-counts)
    total = sum(pairs.values())
    return Errors(total - int(counts[rows, columns].sum()), total)


def join_by_speaker(said: Iterable[Said]) -> Mapping[str, str]:
    """Return all words of each speaker."""
    texts: dict[str, list[str]] = {}
    for speaker, text in said:
        texts.setdefault(speaker, []).append(text.strip())
    return {speaker: " ".join(parts) for speaker, parts in texts.items()}


def speaker_by_word(said: Iterable[Said], language: str | None) -> list[Said]:
    """Return normalized words, each with its speaker; what one says in a row is normalized together."""
    normalize = normalizer(language)
    return [
        (speaker, word)
        for speaker, turns in groupby(said, key=itemgetter(0))
        for word in normalize(" ".join(text.strip() for _, text in turns)).split()
    ]

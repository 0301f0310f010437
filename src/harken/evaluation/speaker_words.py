"""Errors of transcripts with speakers: wrong words, and right words of the wrong speaker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from harken.evaluation.diarization import assign
from harken.evaluation.error_rate import ErrorCounts, align_words, count_word_errors, normalizer

Said = tuple[str, str]
"""A speaker and some words, in the order in which they were said."""


@dataclass(frozen=True, slots=True)
class SpeakerErrors:
    """Words of the wrong speaker among those that are in both texts.

    Attributes
    ----------
    errors : int
        Words whose speaker is not the one that is mapped to that of the reference.
    reference_length : int
        Words of the reference for which the hypothesis has a word, right or wrong.
    """

    errors: int = 0
    reference_length: int = 0

    def __add__(self, other: SpeakerErrors) -> SpeakerErrors:
        return SpeakerErrors(self.errors + other.errors, self.reference_length + other.reference_length)

    @property
    def rate(self) -> float | None:
        """Word diarization error rate; None where no words can be compared."""
        return self.errors / self.reference_length if self.reference_length else None


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


def count_speaker_errors(
    reference: Sequence[Said], hypothesis: Sequence[Said], language: str | None
) -> SpeakerErrors:
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
        return SpeakerErrors()
    rows, columns = assign(-counts)
    total = sum(pairs.values())
    return SpeakerErrors(total - int(counts[rows, columns].sum()), total)


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

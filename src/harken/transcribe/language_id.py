"""Which language a recording is in, or each of its windows: from the probabilities of windows, heard one by one.

Nothing here computes: `Vote` and `Tracker` are told what `harken.decoding.language_probabilities` found, and answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harken.errors import OptionError

LanguageProbabilities = Mapping[str, float]
"""Probability of each language that comes into question, from code to number; they sum to 1."""

SWITCH_ODDS = 0.05
"""Odds that a window is in one given other language, to that it is in the language of the window before it."""
FULL_EVIDENCE_S = 4.0
"""Seconds of speech from which on a window's probabilities are taken as they are."""
MIN_PROBABILITY = 1e-6
"""Least probability that a window may give a language."""


@dataclass(frozen=True, slots=True)
class LanguageVote:
    """The language of a whole recording, from its first windows.

    The first window whose best language reaches the threshold decides; otherwise all windows together do, by the mean
    of their probabilities.

    Parameters
    ----------
    threshold : float
        Probability at which one window decides, 0 to 1.
    windows : int
        How many windows are heard at most, 1 or more.
    heard : tuple of mapping
        Probabilities of the windows heard so far.

    Raises
    ------
    OptionError
        If `threshold` or `windows` is outside what is allowed.
    """

    threshold: float = 0.5
    max_windows: int = 4
    observed: tuple[LanguageProbabilities, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise OptionError("language_threshold", self.threshold, "a probability from 0 to 1")
        if not 1 <= self.max_windows <= 1000:
            raise OptionError("language_windows", self.max_windows, "an integer from 1 to 1000")

    def update(self, probabilities: LanguageProbabilities) -> LanguageVote:
        """The vote after one more window."""
        return LanguageVote(self.threshold, self.max_windows, (*self.observed, probabilities))

    @property
    def wants_more(self) -> bool:
        """Whether another window, if there is one, may change the result."""
        return len(self.observed) < self.max_windows and self._decisive is None

    @property
    def result(self) -> tuple[str, float]:
        """Code of the language and its probability; at least one window must have been heard."""
        return most_probable(self.probabilities)

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of each language, most probable first: of the window that decided, or the mean of all."""
        assert self.observed, "no window has been heard"
        found = mean_probabilities(self.observed) if self._decisive is None else self._decisive
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def _decisive(self) -> LanguageProbabilities | None:
        return next((window for window in self.observed if most_probable(window)[1] >= self.threshold), None)


@dataclass(frozen=True, slots=True)
class LanguageFilter:
    """The language of each window of a recording that may change its language.

    The forward filter of a hidden Markov model with one state a language, each as likely to be left for any other. One
    weak window never changes the language; a strong one does, or two fairly strong ones in a row.

    Parameters
    ----------
    belief : mapping
        Probability of each language after the windows so far; empty before the first.

    Notes
    -----
    How the two constants were chosen stands in docs/decisions/languages.md. Source of the filter: Rabiner 1989, "A
    Tutorial on Hidden Markov Models", section III.A.
    """

    posterior: LanguageProbabilities = field(default_factory=dict)

    def update(self, probabilities: LanguageProbabilities, speech_s: float = FULL_EVIDENCE_S) -> LanguageFilter:
        """The tracker after one more window.

        Parameters
        ----------
        probabilities : mapping
            The same languages in every window.
        speech_s : float
            Seconds of speech in the window; little speech is little evidence, and none changes no language.
        """
        weight = min(speech_s / FULL_EVIDENCE_S, 1.0)
        unnormalized = {
            code: self._prior(code) * max(probability, MIN_PROBABILITY) ** weight
            for code, probability in probabilities.items()
        }
        total = sum(unnormalized.values())
        return LanguageFilter({code: value / total for code, value in unnormalized.items()})

    @property
    def result(self) -> tuple[str, float]:
        """Code of the last window's language and its probability; at least one window must have been heard."""
        assert self.posterior, "no window has been heard"
        return most_probable(self.posterior)

    def _prior(self, code: str) -> float:
        """How probable a language is for the next window, before that is heard; not normalised."""
        if not self.posterior:
            return 1.0
        stay_probability = self.posterior.get(code, 0.0)
        return stay_probability + SWITCH_ODDS * (1 - stay_probability)


def most_probable(probabilities: LanguageProbabilities) -> tuple[str, float]:
    """The most probable language and its probability."""
    return max(probabilities.items(), key=lambda item: item[1])


def mean_probabilities(windows: Sequence[LanguageProbabilities]) -> dict[str, float]:
    """Mean probability of each language over windows that have the same languages."""
    return {code: sum(window[code] for window in windows) / len(windows) for code in windows[0]}

"""Language identification: the language of a recording or of each of its windows, from probabilities per window.

The probabilities come from `harken.decoding.language_probabilities`; no model runs here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harken.errors import OptionError

LanguageProbabilities = Mapping[str, float]
"""Probability of each candidate language by code; they sum to 1."""

SWITCH_ODDS = 0.05
"""Odds of a change to one given other language, against no change from the window before."""
FULL_EVIDENCE_S = 4.0
"""Seconds of speech from which on a window's probabilities have full weight."""
MIN_PROBABILITY = 1e-6
"""Lower bound on the probability of a language in one window."""


@dataclass(frozen=True, slots=True)
class LanguageVote:
    """The language of a whole recording, from its first windows.

    The first window whose most probable language reaches the threshold decides. If no window reaches it, the mean of
    their probabilities decides.

    Parameters
    ----------
    threshold : float
        Probability at which one window decides, 0 to 1.
    max_windows : int
        Most windows to take into account, 1 or more.
    observed : tuple of mapping
        Probabilities of the windows so far.

    Raises
    ------
    OptionError
        If `threshold` or `max_windows` is outside what is allowed.
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
        """Return the vote after one more window; this one is unchanged."""
        return LanguageVote(self.threshold, self.max_windows, (*self.observed, probabilities))

    @property
    def wants_more(self) -> bool:
        """True if another window may change the result."""
        return len(self.observed) < self.max_windows and self._decisive is None

    @property
    def result(self) -> tuple[str, float]:
        """Code of the language and its probability; at least one window must have been observed."""
        return most_probable(self.probabilities)

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of each language, most probable first: those of the window that decided, or the mean of all."""
        assert self.observed, "no window has been observed"
        probabilities = mean_probabilities(self.observed) if self._decisive is None else self._decisive
        return dict(sorted(probabilities.items(), key=lambda item: -item[1]))

    @property
    def _decisive(self) -> LanguageProbabilities | None:
        return next((window for window in self.observed if most_probable(window)[1] >= self.threshold), None)


@dataclass(frozen=True, slots=True)
class LanguageFilter:
    """The language of each window of a recording in which the language may change.

    It is the forward filter of a hidden Markov model with one state per language; a change to any other language is
    equally likely. One window with weak evidence never changes the language; one with strong evidence does, or two in
    a row with fairly strong evidence.

    Parameters
    ----------
    posterior : mapping
        Probability of each language after the windows so far; empty before the first.

    Notes
    -----
    The choice of the two constants is documented in docs/decisions/languages.md. Source of the filter: Rabiner 1989,
    "A Tutorial on Hidden Markov Models", section III.A.
    """

    posterior: LanguageProbabilities = field(default_factory=dict)

    def update(self, probabilities: LanguageProbabilities, speech_s: float = FULL_EVIDENCE_S) -> LanguageFilter:
        """Return the filter after one more window; this one is unchanged.

        Parameters
        ----------
        probabilities : mapping
            Probabilities of the window; the same languages in every window.
        speech_s : float
            Seconds of speech in the window; less speech has less weight, and no speech never changes the language.
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
        """Code of the last window's language and its probability; at least one window must have been observed."""
        assert self.posterior, "no window has been observed"
        return most_probable(self.posterior)

    def _prior(self, code: str) -> float:
        """Return the prior probability of a language for the next window, not normalised."""
        if not self.posterior:
            return 1.0
        stay_probability = self.posterior.get(code, 0.0)
        return stay_probability + SWITCH_ODDS * (1 - stay_probability)


def most_probable(probabilities: LanguageProbabilities) -> tuple[str, float]:
    """Return the most probable language and its probability."""
    return max(probabilities.items(), key=lambda item: item[1])


def mean_probabilities(windows: Sequence[LanguageProbabilities]) -> dict[str, float]:
    """Return the mean probability of each language over windows with the same languages."""
    return {code: sum(window[code] for window in windows) / len(windows) for code in windows[0]}

"""Language identification: probabilities of a window from one decoding step, and from them the language of a recording
or of each of its windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from harken.contract import Backend, Features
from harken.errors import OptionError
from harken.text import Tokenizer, to_language_code

LanguageProbabilities = Mapping[str, float]
"""Probability of each candidate language by code; they sum to 1."""

SWITCH_ODDS = 0.05
"""Odds of a change to one given other language, against no change from the window before."""
FULL_EVIDENCE_S = 4.0
"""Seconds of speech from which on a window's probabilities have full weight."""
MIN_PROBABILITY = 1e-6
"""Lower bound on the probability of a language in one window."""


def language_probabilities(
    backend: Backend, features: Features, tokenizer: Tokenizer, languages: Collection[str] = ()
) -> list[dict[str, float]]:
    """Return the probability of each language in each window, most probable first.

    They sum to 1 over the languages that are possible, of which codes or names are given; none allow all. It opens a
    session of its own, so no other KV cache is touched. An English-only model returns {"en": 1.0}.

    Raises
    ------
    OptionError
        If the model does not know one of `languages`.

    Notes
    -----
    Source: openai/whisper, decoding.py, detect_language.
    """
    codes = allowed_languages(tokenizer, languages)
    if not tokenizer.multilingual:
        return [{"en": 1.0}] * features.n_windows
    by_token = {tokenizer.language_tokens[code]: code for code in codes}
    rows = range(features.n_windows)
    logits = backend.open_session(features, rows, 1).extend([[tokenizer.sot]] * len(rows))
    logits.suppress_tokens(np.delete(np.arange(backend.dims.n_vocab), list(by_token)))
    ids, logprobs = logits.top(len(by_token))
    return [
        {by_token[token]: probability for token, probability in zip(*row, strict=True)}
        for row in zip(ids.tolist(), np.exp(logprobs).tolist(), strict=True)
    ]


def allowed_languages(tokenizer: Tokenizer, languages: Collection[str]) -> tuple[str, ...]:
    """Return the codes of some languages, or of all that the model knows if none are given.

    Raises
    ------
    OptionError
        If the model does not know one of them.
    """
    known = tuple(tokenizer.language_tokens) if tokenizer.multilingual else ("en",)
    codes = tuple(dict.fromkeys(to_language_code(language, option="languages") for language in languages))
    for code in codes:
        if code not in known:
            allowed = (
                f"one of {', '.join(known)}" if tokenizer.multilingual else "en, as this model is English-only"
            )
            raise OptionError("languages", code, allowed)
    return codes or known


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
    """

    threshold: float
    max_windows: int
    observed: tuple[LanguageProbabilities, ...] = ()

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
        return next(iter(self.probabilities.items()))

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of each language, most probable first: those of the window that decided, or the mean of all."""
        assert self.observed, "no window has been observed"
        probabilities = self._decisive or {
            code: sum(window[code] for window in self.observed) / len(self.observed)
            for code in self.observed[0]
        }
        return dict(sorted(probabilities.items(), key=lambda item: -item[1]))

    @property
    def _decisive(self) -> LanguageProbabilities | None:
        return next((window for window in self.observed if max(window.values()) >= self.threshold), None)


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
        return max(self.posterior.items(), key=lambda item: item[1])

    def _prior(self, code: str) -> float:
        """Return the prior probability of a language for the next window, not normalised."""
        if not self.posterior:
            return 1.0
        stay_probability = self.posterior.get(code, 0.0)
        return stay_probability + SWITCH_ODDS * (1 - stay_probability)

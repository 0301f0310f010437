"""Language identification: probabilities of a window from one decoding step, and from them the language of a recording
or of each of its windows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

import numpy as np

from harken.contract import Backend, Features
from harken.errors import OptionError
from harken.text import Tokenizer, to_language_code

LanguageProbabilities = Mapping[str, float]
"""Probability of each candidate language by code; they sum to 1."""

SWITCH_ODDS = 0.05
"""Odds of a change to one given other language, against no change from the window before."""
FULL_EVIDENCE_S = 2.0
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


def vote_on_language(
    windows: Iterable[LanguageProbabilities], threshold: float, max_windows: int
) -> dict[str, float]:
    """Return the probability of each language in a whole recording, most probable first, from its first windows.

    The first window whose most probable language reaches the threshold decides, and no further one is read. If none of
    `max_windows` reaches it, the mean of their probabilities decides. There is at least one window.
    """
    observed: list[LanguageProbabilities] = []
    for window in islice(windows, max_windows):
        observed.append(window)
        if max(window.values()) >= threshold:
            observed = [window]
            break
    means = {code: sum(each[code] for each in observed) / len(observed) for code in observed[0]}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def next_posterior(
    posterior: LanguageProbabilities, probabilities: LanguageProbabilities, speech_s: float
) -> dict[str, float]:
    """Return the probability of each language in the next window of a recording in which the language may change.

    It is the forward filter of a hidden Markov model with one state per language; a change to any other language is
    equally likely. One window with weak evidence never changes the language; one with strong evidence does, or two in
    a row with fairly strong evidence.

    Parameters
    ----------
    posterior : mapping
        What was returned for the window before; empty before the first.
    probabilities : mapping
        Probabilities of the window alone; the same languages in every window.
    speech_s : float
        Seconds of speech in the window; less speech has less weight, and no speech never changes the language.

    Notes
    -----
    The choice of the two constants is documented in docs/decisions/languages.md. Source of the filter: Rabiner 1989,
    "A Tutorial on Hidden Markov Models", section III.A.
    """
    weight = min(speech_s / FULL_EVIDENCE_S, 1.0)

    def prior(code: str) -> float:
        if not posterior:
            return 1.0
        stay_probability = posterior.get(code, 0.0)
        return stay_probability + SWITCH_ODDS * (1 - stay_probability)

    unnormalized = {
        code: prior(code) * max(probability, MIN_PROBABILITY) ** weight
        for code, probability in probabilities.items()
    }
    total = sum(unnormalized.values())
    return {code: value / total for code, value in unnormalized.items()}

"""Language identification from one decoding step."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from harken.contract import Backend, Features
from harken.errors import OptionError
from harken.text import Tokenizer, to_language_code


def language_probabilities(
    backend: Backend, features: Features, tokenizer: Tokenizer, languages: Collection[str] = ()
) -> list[dict[str, float]]:
    """Return the probability of each language in each window, most probable first.

    Opens a session of its own, so no other KV cache is touched. An English-only model returns {"en": 1.0}.

    Parameters
    ----------
    backend : Backend
    features : Features
        From `backend.encode`, one window or many.
    tokenizer : Tokenizer
    languages : collection of str
        Codes or names of the languages that are possible, among which the probabilities are normalized; empty for all.

    Returns
    -------
    list of dict of str to float
        One a window, code to probability; each sums to 1.

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

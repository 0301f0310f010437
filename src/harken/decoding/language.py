"""Which language a window is in, from one token of decoding."""

from __future__ import annotations

import numpy as np

from harken.contract import Backend, Features
from harken.text import Tokenizer


def language_probabilities(
    backend: Backend, features: Features, tokenizer: Tokenizer
) -> list[dict[str, float]]:
    """Probability of each language in each window, most probable first.

    Opens a session of its own, so no decoding cache is touched. An English-only model answers {"en": 1.0}.

    Notes
    -----
    Source: openai/whisper, decoding.py, detect_language.
    """
    if not tokenizer.multilingual:
        return [{"en": 1.0}] * features.audios
    rows = range(features.audios)
    logits = backend.open(features, rows, 1).extend([[tokenizer.sot]] * len(rows))
    ids = sorted(tokenizer.language_tokens.items(), key=lambda item: item[1])
    allowed = {token for _, token in ids}
    logits.suppress(np.array([t for t in range(backend.dims.n_vocab) if t not in allowed], np.int64))
    columns = [(code, logits.probability(token)) for code, token in ids]
    return [
        dict(sorted(((code, float(p[row])) for code, p in columns), key=lambda item: -item[1])) for row in rows
    ]

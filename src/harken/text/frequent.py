"""The part of a vocabulary that makes up nearly all text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harken.text.tokenizer import Tokenizer

FIRST = 12288


def frequent_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Ascending ids of the byte pairs that were joined first, and of all specials and timestamps."""
    return np.concatenate([np.arange(min(FIRST, tokenizer.eot)), np.arange(tokenizer.eot, tokenizer.n_vocab)])

"""The inputs that `record_decoding.py` gives to openai-whisper, and `test_decoding_golden.py` to harken."""

from __future__ import annotations

import numpy as np

from harken.contract import Floats
from tiny_models import TOKENIZER

FILTERS = (
    {"suppress_blank": True, "timestamps": True, "last_initial": 50},
    {"suppress_blank": False, "timestamps": True, "last_initial": None},
    {"suppress_blank": True, "timestamps": True, "last_initial": 3},
    {"suppress_blank": True, "timestamps": False, "last_initial": None},
)

BEAMS = ((1, 1.0), (2, 1.0), (5, 1.0), (3, 2.0), (4, 0.5), (5, 1.5))
BEAM_SEEDS = 6
BEAM_EOT = 7
BEAM_LIMIT = 8

PROMPTS = (
    (TOKENIZER.sot_prev, 72, 101, 108, TOKENIZER.sot, 300, TOKENIZER.transcribe),
    (TOKENIZER.sot, 280, 90),
)


def filter_logits(seed: int, step: int) -> Floats:
    """Draw logits over the tiny vocabulary; in about half of them the timestamps together outweigh the text."""
    rng = np.random.default_rng((seed, step))
    logits = 8 * rng.random(TOKENIZER.n_vocab, np.float32)
    logits[TOKENIZER.timestamp_begin :] -= 12 * rng.random(dtype=np.float32)
    return logits


def beam_logits(seed: int, prefix: tuple[int, ...]) -> Floats:
    """Draw logits over eight ids after a prefix, the last of them the end of text; no text is empty."""
    logits = 5 * np.random.default_rng((seed, *prefix)).random(BEAM_EOT + 1, np.float32)
    logits[BEAM_EOT] -= 0 if prefix else np.inf
    return logits

"""Decoding of encoded windows into tokens: prompts, logit rules, strategies and drafts.

The package imports no backend, only the contract.
"""

from harken.decoding.alignment_attention import alignment_matrix
from harken.decoding.candidate_generator import Assistant
from harken.decoding.decode_windows import DecodingResult, decode, make_prompt
from harken.decoding.logit_rules import (
    LogitRules,
    compile_suppress_regex,
    make_logit_rules,
    normalized_hotwords,
)
from harken.decoding.partial_window import PartialHypothesis, PartialWindow, decode_partial
from harken.decoding.speculation import DraftContext, SpeculativeDecoder
from harken.decoding.types import (
    MIN_TEMPERATURE,
    Beam,
    DecodeStats,
    Greedy,
    Hypothesis,
    Observer,
    Sample,
    Step,
    Strategy,
    Window,
)

__all__ = [
    "MIN_TEMPERATURE",
    "Assistant",
    "Beam",
    "DecodeStats",
    "DecodingResult",
    "DraftContext",
    "Greedy",
    "Hypothesis",
    "LogitRules",
    "Observer",
    "PartialHypothesis",
    "PartialWindow",
    "Sample",
    "SpeculativeDecoder",
    "Step",
    "Strategy",
    "Window",
    "alignment_matrix",
    "compile_suppress_regex",
    "decode",
    "decode_partial",
    "make_logit_rules",
    "make_prompt",
    "normalized_hotwords",
]

"""Evaluation: how much of what is said in recordings with references is heard rightly, and how fast.

It needs the extra ``harken[eval]``, and imports it when it is used.
"""

from harken.evaluation.compare import Piece, Tally, differences
from harken.evaluation.evaluate import evaluate, listen
from harken.evaluation.hypotheses import Heard, Hypotheses, open_hypotheses, provenance
from harken.evaluation.manifest import Entry, read_manifests, spread
from harken.evaluation.report import report
from harken.evaluation.speed import Parting, Sound, Timing, Turn, failures, partings, take_turns, timing
from harken.evaluation.summary import (
    Difference,
    ErrorRate,
    Evaluation,
    Failure,
    Invented,
    Score,
    difference,
    score,
    summarise,
)

__all__ = [
    "Difference",
    "Entry",
    "ErrorRate",
    "Evaluation",
    "Failure",
    "Heard",
    "Hypotheses",
    "Invented",
    "Parting",
    "Piece",
    "Score",
    "Sound",
    "Tally",
    "Timing",
    "Turn",
    "difference",
    "differences",
    "evaluate",
    "failures",
    "listen",
    "open_hypotheses",
    "partings",
    "provenance",
    "read_manifests",
    "report",
    "score",
    "spread",
    "summarise",
    "take_turns",
    "timing",
]

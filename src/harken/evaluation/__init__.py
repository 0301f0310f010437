"""Evaluation: how much of what is said in recordings with references is heard rightly, and how fast.

It needs the extra ``harken[eval]``, and imports it when it is used.
"""

from harken.evaluation.compare import Piece, Tally, differences
from harken.evaluation.evaluate import evaluate, listen
from harken.evaluation.hypotheses import Heard, Hypotheses, open_hypotheses, provenance
from harken.evaluation.manifest import Entry, read_manifests, spread
from harken.evaluation.report import report
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
    "Piece",
    "Score",
    "Tally",
    "difference",
    "differences",
    "evaluate",
    "listen",
    "open_hypotheses",
    "provenance",
    "read_manifests",
    "report",
    "score",
    "spread",
    "summarise",
]

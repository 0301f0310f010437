"""Evaluation: how much of what is said in recordings with references is heard rightly, and how fast.

It needs the extra ``harken[eval]``, and imports it when it is used.
"""

from harken.evaluation.error_rate import AlignmentChunk, ErrorCounts, align_words
from harken.evaluation.evaluate import evaluate, evaluate_entries
from harken.evaluation.hypotheses import EvalHypothesis, HypothesisStore, open_hypotheses, provenance
from harken.evaluation.manifest import Entry, read_manifests, subsample_evenly
from harken.evaluation.scoring import (
    ErrorRate,
    ErrorRateDifference,
    Evaluation,
    Failure,
    Hallucinations,
    Score,
    compare_evaluations,
    report,
    score,
    summarise,
)
from harken.evaluation.speed import (
    Divergence,
    EvalRecording,
    Round,
    SpeedSummary,
    divergences,
    failures,
    run_rounds,
    summarise_speed,
)

__all__ = [
    "AlignmentChunk",
    "Divergence",
    "Entry",
    "ErrorCounts",
    "ErrorRate",
    "ErrorRateDifference",
    "EvalHypothesis",
    "EvalRecording",
    "Evaluation",
    "Failure",
    "Hallucinations",
    "HypothesisStore",
    "Round",
    "Score",
    "SpeedSummary",
    "align_words",
    "compare_evaluations",
    "divergences",
    "evaluate",
    "evaluate_entries",
    "failures",
    "open_hypotheses",
    "provenance",
    "read_manifests",
    "report",
    "run_rounds",
    "score",
    "subsample_evenly",
    "summarise",
    "summarise_speed",
]

"""Evaluation of engines: error rates against reference texts, speed, and latency of live sessions.

Error rates need the extra ``harken[eval]``, which is imported on first use.
"""

from harken.evaluation.error_rate import AlignmentChunk, ErrorCounts, align_words, normalizer
from harken.evaluation.evaluate import evaluate, evaluate_entries
from harken.evaluation.hypotheses import EvalHypothesis, HypothesisStore, open_hypotheses, provenance
from harken.evaluation.latency import Latencies, Percentiles, unit_splitter
from harken.evaluation.live_runs import (
    ComputeCost,
    LiveRound,
    LiveRun,
    LiveSummary,
    run_live,
    run_live_rounds,
    summarise_live,
)
from harken.evaluation.manifest import Entry, EvalRecording, read_manifests, subsample_evenly
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
from harken.evaluation.simulation import (
    JoinedStream,
    LiveSessionProtocol,
    join_by_speaker,
    reference_word_times,
)
from harken.evaluation.speed import (
    Divergence,
    Round,
    SpeedSummary,
    divergences,
    failures,
    run_rounds,
    summarise_speed,
)

__all__ = [
    "AlignmentChunk",
    "ComputeCost",
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
    "JoinedStream",
    "Latencies",
    "LiveRound",
    "LiveRun",
    "LiveSessionProtocol",
    "LiveSummary",
    "Percentiles",
    "Round",
    "Score",
    "SpeedSummary",
    "align_words",
    "compare_evaluations",
    "divergences",
    "evaluate",
    "evaluate_entries",
    "failures",
    "join_by_speaker",
    "normalizer",
    "open_hypotheses",
    "provenance",
    "read_manifests",
    "reference_word_times",
    "report",
    "run_live",
    "run_live_rounds",
    "run_rounds",
    "score",
    "subsample_evenly",
    "summarise",
    "summarise_live",
    "summarise_speed",
    "unit_splitter",
]

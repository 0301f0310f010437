"""An evaluation as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harken.evaluation.error_rate import ErrorCounts
from harken.evaluation.scoring import ErrorRate, Evaluation, Score


def report(evaluation: Evaluation, provenance: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """Turn an evaluation into what `json.dumps` takes; docs/eval.md lists the keys.

    Parameters
    ----------
    evaluation : Evaluation
    by : mapping
        What made the hypotheses (see `harken.evaluation.provenance`).
    complete : bool
        Whether all recordings were done.
    """
    speed = evaluation.times_real_time
    return {
        "by": dict(provenance),
        "complete": complete,
        "audio_s": round(evaluation.audio_s, 3),
        "wall_s": round(evaluation.wall_s, 3),
        "times_real_time": None if speed is None else round(speed, 2),
        "wer": _rate(evaluation.wer),
        "cer": _rate(evaluation.cer),
        "overall": _rate(evaluation.overall),
        "languages": {code: _rate(rate) for code, rate in evaluation.languages.items()},
        "resampling_unit": evaluation.resampling_unit,
        "hallucinations": asdict(evaluation.hallucinations),
        "recordings": [_recording(score) for score in evaluation.scores],
        "failed": [{"audio": failure.entry.name, "reason": failure.reason} for failure in evaluation.failures],
    }


def _recording(score: Score) -> dict[str, Any]:
    return {
        "audio": score.entry.name,
        "language": score.language,
        "speaker": score.entry.speaker,
        "seconds": score.seconds,
        "wall_s": score.hypothesis.wall_s,
        "hypothesis_language": score.hypothesis.language,
        "reference": score.entry.text,
        "hypothesis": score.hypothesis.text,
        "normalized_reference": score.normalized_reference,
        "normalized_hypothesis": score.normalized_hypothesis,
        "words": score.word_errors and _error_counts(score.word_errors),
        "characters": _error_counts(score.character_errors),
    }


def _rate(rate: ErrorRate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    low, high = rate.confidence_interval or (None, None)
    return _error_counts(rate.error_counts) | {"low": low, "high": high}


def _error_counts(counts: ErrorCounts) -> dict[str, Any]:
    return {"rate": counts.rate, "errors": counts.errors, "reference_length": counts.reference_length} | asdict(
        counts
    )

"""An evaluation as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harken.evaluation.compare import Tally
from harken.evaluation.summary import ErrorRate, Evaluation, Score


def report(evaluation: Evaluation, by: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
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
        "by": dict(by),
        "complete": complete,
        "audio_s": round(evaluation.audio_s, 3),
        "wall_s": round(evaluation.wall_s, 3),
        "times_real_time": None if speed is None else round(speed, 2),
        "wer": _rate(evaluation.wer),
        "cer": _rate(evaluation.cer),
        "overall": _rate(evaluation.overall),
        "languages": {code: _rate(rate) for code, rate in evaluation.languages.items()},
        "drawn": evaluation.drawn,
        "invented": asdict(evaluation.invented),
        "recordings": [_recording(score) for score in evaluation.scores],
        "failed": [{"audio": its.entry.name, "reason": its.reason} for its in evaluation.failures],
    }


def _recording(score: Score) -> dict[str, Any]:
    return {
        "audio": score.entry.name,
        "language": score.language,
        "speaker": score.entry.speaker,
        "seconds": score.seconds,
        "wall_s": score.heard.wall_s,
        "heard_language": score.heard.language,
        "reference": score.entry.text,
        "hypothesis": score.heard.text,
        "normalized_reference": score.said,
        "normalized_hypothesis": score.understood,
        "words": score.words and _tally(score.words),
        "characters": _tally(score.characters),
    }


def _rate(rate: ErrorRate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    low, high = rate.interval or (None, None)
    return _tally(rate.tally) | {"low": low, "high": high}


def _tally(tally: Tally) -> dict[str, Any]:
    return {"rate": tally.rate, "errors": tally.errors, "reference": tally.reference} | asdict(tally)

"""Record what pyannote.metrics and meeteval say of drawn turns and texts.

Run with both installed, in an environment of their own:

    pip install pyannote.metrics==4.2.0 meeteval==0.4.3
    PYTHONPATH=tests/golden python tests/golden/record_diarization.py

It writes tests/golden/diarization.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import meeteval
from diarization_inputs import CASES, COLLARS_S, Turn, draw_case, draw_texts
from goldens import write_json
from pyannote.core import Annotation, Segment
from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate


def main() -> None:
    record = {
        "versions": {name: metadata.version(name) for name in ("pyannote.metrics", "meeteval")},
        "turns": [score_turns(seed) for seed in range(CASES)],
        "texts": [score_texts(seed) for seed in range(CASES)],
    }
    lines = (f" {json.dumps(name)}: {_dump(value)}" for name, value in record.items())
    write_json("diarization", "{{\n{}\n}}".format(",\n".join(lines)))


def _dump(value: Any) -> str:
    """Return a value as JSON, a list with a line for each case."""
    if isinstance(value, list):
        return "[\n  {}\n ]".format(",\n  ".join(map(json.dumps, value)))
    return json.dumps(value)


def score_turns(seed: int) -> dict[str, Any]:
    """Return the parts of the diarization error rate for each way of scoring, and the Jaccard error rate."""
    reference, hypothesis = (annotation(turns) for turns in draw_case(seed))
    scores: dict[str, Any] = {}
    for name, collar_s in COLLARS_S.items():
        metric = DiarizationErrorRate(collar=2 * collar_s)  # its collar is the length of both sides together
        parts = metric.compute_components(reference, hypothesis)
        names = ("total", "missed detection", "false alarm", "confusion")
        scores[name] = [round(parts[part], 6) for part in names]
    return scores | {"jaccard": round(JaccardErrorRate()(reference, hypothesis), 6)}


def annotation(turns: Sequence[Turn]) -> Annotation:
    """Return turns as pyannote holds them."""
    result = Annotation()
    for index, (start, end, speaker) in enumerate(turns):
        result[Segment(start, end), index] = speaker
    return result.support()


def score_texts(seed: int) -> list[int]:
    """Return the errors and the length of the reference of the concatenated minimum-permutation word error rate."""
    texts = []
    for said in draw_texts(seed):
        joined: dict[str, list[str]] = {}
        for speaker, text in said:
            joined.setdefault(speaker, []).append(text)
        texts.append({speaker: " ".join(parts) for speaker, parts in joined.items()})
    score = meeteval.wer.cp_word_error_rate(*texts)
    return [score.errors, score.length]


if __name__ == "__main__":
    main()

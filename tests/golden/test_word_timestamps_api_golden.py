"""Words of whole recordings through the public API, against those of openai-whisper (see record_words.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words_inputs import Case

from real_models import larger_recognizer, recognizer

GOLDEN = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
TOLERANCE_S = 0.02 + 1e-6
"""One timestamp position."""
OPTIONS: dict[str, Any] = {
    "word_timestamps": True,
    "temperatures": (0.0,),
    "condition_on_previous_text": False,
    "vad": False,
    "hallucination_threshold": None,
}
MARKS = {"jfk": [pytest.mark.real]}
"""The example takes a second and comes with the package; the others take longer."""


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param(
            recorded,
            id=recorded["recording"],
            marks=MARKS.get(recorded["recording"], [pytest.mark.real, pytest.mark.slow]),
        )
        for recorded in GOLDEN["recordings"]
    ],
)
def test_words_have_the_times_of_the_reference(recorded: dict[str, Any]) -> None:
    case = Case(**{name: recorded[name] for name in ("recording", "model", "language")})
    if not case.path.is_file():
        pytest.skip(f"{case.path} is not there")
    assert hashlib.sha256(case.path.read_bytes()).hexdigest() == recorded["sha256"]
    model = recognizer("fp32") if case.model == "tiny.en" else larger_recognizer(case.model)
    segments = model.transcribe(case.path, language=case.language, **OPTIONS).result().segments
    expected = recorded["segments"]
    assert [segment.tokens for segment in segments] == [tuple(segment["tokens"]) for segment in expected]
    assert [round(100 * segment.seek_s) for segment in segments] == [segment["seek"] for segment in expected]
    words = [word for segment in segments for word in segment.words]
    reference = [word for segment in expected for word in segment["words"]]
    assert [word.text for word in words] == [text for text, *_ in reference]
    times = [(word.start_s, word.end_s) for word in words]
    np.testing.assert_allclose(times, [word[1:3] for word in reference], atol=TOLERANCE_S, rtol=0)
    np.testing.assert_allclose(
        [word.probability for word in words], [word[3] for word in reference], atol=2e-3, rtol=0
    )
    spans = [(segment.start_s, segment.end_s) for segment in segments]
    np.testing.assert_allclose(
        spans, [(segment["start"], segment["end"]) for segment in expected], atol=TOLERANCE_S, rtol=0
    )

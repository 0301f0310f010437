"""Scores of diarization, compared with those of pyannote.metrics and meeteval (see `record_diarization.py`)."""

from __future__ import annotations

import pytest
from diarization_inputs import CASES, SCORINGS, Turn, draw_case, draw_texts
from goldens import read_json

from harken.evaluation.speaker_errors import count_cp_word_errors, count_diarization_errors, jaccard_errors
from harken.results import SpeakerTurn

GOLDEN = read_json("diarization")


def as_turns(turns: list[Turn]) -> list[SpeakerTurn]:
    return [SpeakerTurn(start_s=start, end_s=end, speaker=speaker) for start, end, speaker in turns]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("seed", range(CASES))
def test_the_parts_of_the_error_rate_are_those_of_pyannote(seed: int, scoring: str) -> None:
    reference, hypothesis = map(as_turns, draw_case(seed))
    collar_s, overlap = SCORINGS[scoring]
    errors = count_diarization_errors(reference, hypothesis, collar_s=collar_s, overlap=overlap)
    parts = [errors.speech_s, errors.missed_s, errors.false_alarm_s, errors.confused_s]
    assert parts == pytest.approx(GOLDEN["turns"][seed][scoring], abs=1e-5)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_jaccard_error_rate_is_that_of_pyannote(seed: int) -> None:
    reference, hypothesis = map(as_turns, draw_case(seed))
    errors = jaccard_errors(reference, hypothesis)
    assert sum(errors.values()) / len(errors) == pytest.approx(GOLDEN["turns"][seed]["jaccard"], abs=1e-5)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_word_error_rate_by_speaker_is_that_of_meeteval(seed: int) -> None:
    errors = count_cp_word_errors(*draw_texts(seed), None)
    assert [errors.errors, errors.reference_length] == GOLDEN["texts"][seed]

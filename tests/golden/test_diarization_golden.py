"""Scores of diarization, compared with those of pyannote.metrics and meeteval (see `record_diarization.py`)."""

import pytest
from diarization_inputs import CASES, COLLARS_S, draw_case, draw_texts
from goldens import read_json

from harken.evaluation.speakers import count_cp_word_errors, count_diarization_errors, jaccard_errors
from harken.results import SpeakerTurn

GOLDEN = read_json("diarization")


def as_turns(turns):
    return [SpeakerTurn(start_s=start, end_s=end, speaker=speaker) for start, end, speaker in turns]


@pytest.mark.parametrize("seed", range(CASES))
def test_errors_are_those_of_pyannote_and_meeteval(seed):
    golden, (reference, hypothesis) = GOLDEN["turns"][seed], map(as_turns, draw_case(seed))
    for scoring, collar_s in COLLARS_S.items():
        errors = count_diarization_errors(reference, hypothesis, collar_s=collar_s)
        parts = [errors.speech_s, errors.missed_s, errors.false_alarm_s, errors.confused_s]
        assert parts == pytest.approx(golden[scoring], abs=1e-5), scoring
    assert jaccard_errors(reference, hypothesis).rate == pytest.approx(golden["jaccard"], abs=1e-5)
    words = count_cp_word_errors(*draw_texts(seed), None)
    assert [words.errors, words.reference_length] == GOLDEN["texts"][seed]

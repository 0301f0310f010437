"""Scores of speakers: turns from RTTM, errors in time and in words, and ``harken eval --speakers``."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from audio_files import AUDIO_FORMATS
from fakes.measured import FixedDiarizer, read_report
from harken.errors import ManifestError
from harken.evaluation.error_rate import ErrorCounts
from harken.evaluation.speakers import (
    DiarizationErrors,
    Errors,
    SpeakerHypothesis,
    count_cp_word_errors,
    count_diarization_errors,
    count_speaker_errors,
    evaluate_speakers,
    score_speakers,
    summarise_speakers,
)
from harken.formats.table_format import read_rttm
from harken.manifests import Entry, read_manifests
from harken.results import Speaker, SpeakerTurn, Transcript
from transcripts import segment

SECONDS = 10.0
REFERENCE = "SPEAKER talk 1 0.0 4.0 <NA> <NA> ann <NA> <NA>\nSPEAKER talk 1 5.0 5.0 <NA> <NA> bob <NA> <NA>\n"


def turns(*spans):
    return tuple(SpeakerTurn(start_s=start, end_s=end, speaker=speaker) for start, end, speaker in spans)


ANN_AND_BOB = turns((0.0, 4.0, "ann"), (5.0, 10.0, "bob"))


@pytest.fixture
def talk(tmp_path, monkeypatch):
    """A folder with a recording, its turns and a manifest with its words."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "talks"
    folder.mkdir()
    AUDIO_FORMATS["wav s16"].write(folder / "talk", SECONDS)
    (folder / "talk.rttm").write_text(REFERENCE, encoding="utf-8")
    said = [{"speaker": "ann", "text": "One dog."}, {"speaker": "bob", "text": "A big house."}]
    line = {"audio": "talk.wav", "language": "en", "seconds": SECONDS, "rttm": "talk.rttm", "said": said}
    (folder / "manifest.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def rttm(tmp_path):
    return tmp_path / "a.rttm"


def test_turns_of_one_recording_are_read_in_order_and_other_lines_skipped(rttm):
    rttm.write_text(
        ";; a comment\n\nSPKR-INFO talk 1 <NA> <NA> <NA> unknown ann <NA>\n"
        "SPEAKER talk 1 5 1.5 <NA> <NA> bob <NA> <NA>\n"
        "SPEAKER talk 1 0.25 2 <NA> <NA> ann <NA> <NA>\n"
    )
    assert read_rttm(rttm) == turns((0.25, 2.25, "ann"), (5.0, 6.5, "bob"))
    rttm.write_text(REFERENCE + REFERENCE.replace("talk", "other"))
    with pytest.raises(ManifestError, match=r"turns of several recordings \(other, talk\); allowed is one"):
        read_rttm(rttm)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "a.rttm: no such file; allowed is a file of turns in RTTM"),
        (b"\xff\xfe\xff", "a.rttm: is not UTF-8 text, at byte 0"),
        (b"SPEAKER talk 1 0 1", "a.rttm:1: has 5 fields; allowed are 8 or more"),
        (b"SPEAKER talk 1 x 1 <NA> <NA> ann", "start x, duration 1: allowed are seconds, from 0 on"),
        (b"SPEAKER talk 1 0 -1 <NA> <NA> ann", "start 0, duration -1: allowed are seconds"),
        (b"SPEAKER talk 1 nan 1 <NA> <NA> ann", "start nan"),
        (b"SPEAKER talk 1 1e300 1 <NA> <NA> ann", "a.rttm:1: "),
    ],
)
def test_a_file_that_is_missing_or_no_text_and_a_line_that_is_no_turn_are_named(rttm, content, problem):
    if content is not None:
        rttm.write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        read_rttm(rttm)
    assert problem in str(caught.value)


def test_turns_of_one_speaker_that_overlap_count_once():
    hypothesis = turns((0.0, 3.0, "A"), (2.0, 4.0, "A"), (5.0, 10.0, "B"), (6.0, 6.0, "B"))
    assert count_diarization_errors(ANN_AND_BOB, hypothesis).errors == 0.0
    assert count_diarization_errors(hypothesis, hypothesis, collar_s=0.25).speech_s == 9.0 - 4 * 0.25
    assert count_diarization_errors(turns((0.0, 1.0, "A"), (2.0, 3.0, "A")), ()).speech_s == 2.0


def test_nothing_found_is_all_missed_and_nothing_said_all_false():
    assert count_diarization_errors(ANN_AND_BOB, ()) == DiarizationErrors(speech_s=9.0, missed_s=9.0)
    nothing = count_diarization_errors((), ANN_AND_BOB)
    assert nothing == DiarizationErrors(false_alarm_s=9.0)
    assert nothing.rate is None
    assert count_diarization_errors((), (), collar_s=0.25) == DiarizationErrors()


SAID = (("ann", "One dog."), ("bob", "A big house."), ("ann", "And a cat."))


def test_words_of_the_wrong_speaker_are_wrong_twice():
    hypothesis = (("A", "one dog a"), ("B", "big house"), ("A", "and a cat"))
    assert count_cp_word_errors(SAID, hypothesis, None).errors == 2
    assert count_speaker_errors(SAID, hypothesis, None) == Errors(1, 8)
    fewer = (("A", "one fog"), ("B", "big house"), ("A", "and cat"))
    assert count_speaker_errors(SAID, fewer, None) == Errors(0, 6)


def test_a_speaker_too_many_or_too_few_is_compared_with_nothing():
    assert count_cp_word_errors(SAID, (("A", "one dog and a cat"),), None).deletions == 3
    assert count_cp_word_errors(SAID, (), None).deletions == 8
    assert count_cp_word_errors((), SAID, None).insertions == 8
    assert count_speaker_errors(SAID, (), None).rate is None


def test_rates_are_over_all_recordings_and_their_intervals_from_resampled_ones(talk):
    (entry,) = read_manifests([talk], needs_text=False)
    right = score_speakers(entry, ANN_AND_BOB, SpeakerHypothesis(turns=ANN_AND_BOB))
    wrong = score_speakers(entry, ANN_AND_BOB, SpeakerHypothesis(turns=turns((0.0, 10.0, "A"))))
    evaluation = summarise_speakers([right, wrong])
    assert evaluation.der.rate == pytest.approx(5 / 18)
    assert evaluation.der.confidence_interval == pytest.approx((0.0, 5 / 9))
    assert (evaluation.counted_right, evaluation.cp_wer) == (1, None)
    assert summarise_speakers([]).der is None


def test_recordings_with_words_are_transcribed_and_others_only_diarized(talk):
    said = ((" One dog.", ("A",)), (" A house.", ("B",)), (" You", ()))

    def transcribe(audio, options, *, language, diarizer):
        found = diarizer.diarize(audio).turns
        transcript = Transcript(
            **{"model": "fixed", "language": language, "duration_s": SECONDS, "turns": found},
            segments=tuple(segment(0.0, 1.0, text, speakers=speakers) for text, speakers in said),
            speakers=tuple(Speaker(name=turn.speaker, seconds=1.0) for turn in found),
        )
        return SimpleNamespace(result=lambda: transcript)

    (entry,) = read_manifests([talk], needs_text=False)
    diarizer = FixedDiarizer(turns((0.0, 4.0, "A"), (5.0, 10.0, "B")))
    recognizer = SimpleNamespace(transcribe=Mock(side_effect=transcribe))
    silent = Entry(name="silent", path=entry.path, text="")
    first, second = evaluate_speakers([entry, silent], lambda: diarizer, lambda: recognizer)
    assert (diarizer.calls, recognizer.transcribe.call_count) == (2, 1)
    assert first.errors.rate == second.errors.rate == 0.0
    assert first.cp_word_errors == ErrorCounts(hits=4, deletions=1, insertions=1)
    assert second.cp_word_errors is None


def test_a_missing_reference_fails_before_anything_is_loaded(talk):
    (talk / "talk.rttm").rename(talk / "other.rttm")
    entry = Entry(name="talk", path=talk / "talk.wav", text="")
    with pytest.raises(ManifestError, match=r"talk\.rttm: no such file"):
        list(evaluate_speakers([entry], lambda: pytest.fail("loaded")))


def test_each_recording_and_the_totals_are_printed(cli, talk):
    cli.loaders["load_diarizer"] = lambda **given: FixedDiarizer(turns((0.0, 4.0, "A"), (5.0, 9.0, "B")))
    outcome = cli.run("eval", "--speakers", "--no-words", "talks", "--json", "out.json")
    assert outcome.code == 0
    assert "  11.11   9.38  10.00    2 of 2      -  talks/talk.wav\n" in outcome.out
    assert "Number of speakers right in 1 of 1 recording.\n" in outcome.out
    result = read_report()
    assert (result["complete"], result["cp_wer"]) == (True, None)
    assert result["der"] == {"rate": pytest.approx(1 / 9), "confidence_interval": None}
    assert result["recordings"][0]["errors"]["missed_s"] == pytest.approx(1.0)


def test_models_of_speakers_are_not_downloaded_where_that_is_forbidden(cli, talk):
    cli.monkeypatch.delenv("HARKEN_SPEAKER_MODEL", raising=False)
    cli.monkeypatch.setenv("HARKEN_CACHE", "empty")
    outcome = cli.run("eval", "--speakers", "--no-words", "--no-download", "talks")
    assert outcome.code == 4
    assert "downloads are off" in outcome.err


def test_turns_that_are_there_are_scored_and_missing_ones_are_named(cli, talk):
    arguments = ("eval", "--speakers", "--turns", "found", "talks", "--quiet")
    Path("found").mkdir()
    outcome = cli.run(*arguments)
    assert outcome.code == 3
    assert "found: has no turns for talks/talk.wav; allowed is talk.json or talk.rttm" in outcome.err
    Path("found/talk.rttm").write_text(REFERENCE, encoding="utf-8")
    outcome = cli.run(*arguments)
    assert outcome.code == 0
    assert "talks/talk.wav" not in outcome.out
    assert "DER                 0.00" in outcome.out
    for folder in ("one", "two"):
        shutil.copytree(talk, folder)
    outcome = cli.run(*arguments[:-2], "one", "two")
    line = (
        f"harken: {Path('found/talk.rttm')}: is of two/talk.wav and of a recording before it; allowed is one\n"
    )
    assert (outcome.code, outcome.err) == (3, line)


def test_recording_of_two_manifests_has_the_same_turns_in_both(cli, talk):
    Path("found").mkdir()
    Path("found/talk.rttm").write_text(REFERENCE, encoding="utf-8")
    Path("others").mkdir()
    manifest = Path("talks/manifest.jsonl").read_text(encoding="utf-8")
    Path("others/manifest.jsonl").write_text(manifest.replace('"talk.', '"../talks/talk.'), encoding="utf-8")
    outcome = cli.run("eval", "--speakers", "--turns", "found", "talks", "others", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")

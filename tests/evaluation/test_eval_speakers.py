"""Scores of speakers: turns from RTTM, errors in time and in words, and ``harken eval --speakers``."""

from __future__ import annotations

import builtins
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import CliRunner
from fakes.measured import FixedDiarizer
from harken.errors import BackendUnavailable, ManifestError
from harken.evaluation.error_rate import ErrorCounts
from harken.evaluation.speaker_errors import (
    DiarizationErrors,
    Errors,
    count_cp_word_errors,
    count_diarization_errors,
    count_speaker_errors,
)
from harken.evaluation.speakers import SpeakerHypothesis, evaluate_speakers, score_speakers, summarise_speakers
from harken.formats.rttm import read_rttm
from harken.manifests import Entry, read_manifests
from harken.results import Segment, Speaker, SpeakerTurn, Transcript

SECONDS = 10.0
REFERENCE = "SPEAKER talk 1 0.0 4.0 <NA> <NA> ann <NA> <NA>\nSPEAKER talk 1 5.0 5.0 <NA> <NA> bob <NA> <NA>\n"


def turns(*spans: tuple[float, float, str]) -> tuple[SpeakerTurn, ...]:
    return tuple(SpeakerTurn(start_s=start, end_s=end, speaker=speaker) for start, end, speaker in spans)


ANN_AND_BOB = turns((0.0, 4.0, "ann"), (5.0, 10.0, "bob"))


def segment(text: str, *speakers: str) -> Segment:
    numbers = dict.fromkeys(
        ("start_s", "seek_s", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob"), 0.0
    )
    return Segment(index=0, end_s=1.0, text=text, tokens=(), speakers=speakers, **numbers)


@dataclass
class FixedRecognizer:
    """Transcribes every recording to the same segments, with the diarizer that it is given."""

    segments: tuple[Segment, ...]

    def transcribe(self, audio: Any, options: Any, *, language: str | None, diarizer: Any) -> FixedRecognizer:
        self.found = diarizer.diarize(audio).turns
        return self

    def result(self) -> Transcript:
        speakers = tuple(Speaker(name=name, seconds=1.0) for name in {turn.speaker for turn in self.found})
        return Transcript(
            model="fixed",
            segments=self.segments,
            language="en",
            duration_s=SECONDS,
            speakers=speakers,
            turns=self.found,
        )


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


class TestTurnsFromRttm:
    def test_turns_are_read_in_order_and_other_lines_skipped(self, tmp_path: Path) -> None:
        path = tmp_path / "a.rttm"
        path.write_text(
            ";; a comment\n\nSPKR-INFO talk 1 <NA> <NA> <NA> unknown ann <NA>\n"
            "SPEAKER talk 1 5 1.5 <NA> <NA> bob <NA> <NA>\n"
            "SPEAKER talk 1 0.25 2 <NA> <NA> ann <NA> <NA>\n"
        )
        assert read_rttm(path) == turns((0.25, 2.25, "ann"), (5.0, 6.5, "bob"))

    def test_one_of_several_recordings_can_be_chosen(self, tmp_path: Path) -> None:
        path = tmp_path / "a.rttm"
        path.write_text(REFERENCE + REFERENCE.replace("talk", "other"))
        assert read_rttm(path, "other") == ANN_AND_BOB
        with pytest.raises(ManifestError, match=r"turns of several recordings \(other, talk\); allowed is one"):
            read_rttm(path)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("SPEAKER talk 1 0 1", "a.rttm:1: has 5 fields; allowed are 8 or more"),
            ("SPEAKER talk 1 x 1 <NA> <NA> ann", "start x, duration 1: allowed are seconds, from 0 on"),
            ("SPEAKER talk 1 0 -1 <NA> <NA> ann", "start 0, duration -1: allowed are seconds"),
            ("SPEAKER talk 1 nan 1 <NA> <NA> ann", "start nan"),
            ("SPEAKER talk 1 1e300 1 <NA> <NA> ann", "a.rttm:1: "),
        ],
    )
    def test_a_line_that_is_no_turn_is_named(self, tmp_path: Path, line: str, problem: str) -> None:
        path = tmp_path / "a.rttm"
        path.write_text(line)
        with pytest.raises(ManifestError) as caught:
            read_rttm(path)
        assert problem in str(caught.value)

    def test_a_file_that_is_missing_or_not_text_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="no such file; allowed is a file of turns in RTTM"):
            read_rttm(tmp_path / "none.rttm")
        (tmp_path / "a.rttm").write_bytes(b"\xff\xfe\xff")
        with pytest.raises(ManifestError, match="is not UTF-8 text, at byte 0"):
            read_rttm(tmp_path / "a.rttm")


class TestErrorsInTime:
    def test_turns_of_one_speaker_that_overlap_count_once(self) -> None:
        hypothesis = turns((0.0, 3.0, "A"), (2.0, 4.0, "A"), (5.0, 10.0, "B"), (6.0, 6.0, "B"))
        assert count_diarization_errors(ANN_AND_BOB, hypothesis).errors == 0.0

    def test_nothing_found_is_all_missed_and_nothing_said_all_false(self) -> None:
        assert count_diarization_errors(ANN_AND_BOB, ()) == DiarizationErrors(speech_s=9.0, missed_s=9.0)
        nothing = count_diarization_errors((), ANN_AND_BOB)
        assert nothing == DiarizationErrors(false_alarm_s=9.0)
        assert nothing.rate is None
        assert count_diarization_errors((), (), collar_s=0.25) == DiarizationErrors()

    def test_without_scipy_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real_import = builtins.__import__

        def refuse(name: str, *arguments: Any, **keywords: Any) -> Any:
            if name.startswith("scipy"):
                raise ImportError(name=name)
            return real_import(name, *arguments, **keywords)

        monkeypatch.setattr(builtins, "__import__", refuse)
        with pytest.raises(BackendUnavailable, match=r"pip install '.\[speakers\]'"):
            count_diarization_errors(ANN_AND_BOB, ANN_AND_BOB)


class TestErrorsInWords:
    REFERENCE = (("ann", "One dog."), ("bob", "A big house."), ("ann", "And a cat."))

    def test_words_of_the_wrong_speaker_are_wrong_twice(self) -> None:
        hypothesis = (("A", "one dog a"), ("B", "big house"), ("A", "and a cat"))
        assert count_cp_word_errors(self.REFERENCE, hypothesis, None).errors == 2
        assert count_speaker_errors(self.REFERENCE, hypothesis, None) == Errors(1, 8)
        fewer = (("A", "one fog"), ("B", "big house"), ("A", "and cat"))
        assert count_speaker_errors(self.REFERENCE, fewer, None) == Errors(0, 6)

    def test_a_speaker_too_many_or_too_few_is_compared_with_nothing(self) -> None:
        assert count_cp_word_errors(self.REFERENCE, (("A", "one dog and a cat"),), None).deletions == 3
        assert count_cp_word_errors(self.REFERENCE, (), None).deletions == 8
        assert count_cp_word_errors((), self.REFERENCE, None).insertions == 8
        assert count_speaker_errors(self.REFERENCE, (), None).rate is None


class TestEvaluation:
    def test_rates_are_over_all_recordings_and_their_intervals_from_resampled_ones(self, talk: Path) -> None:
        (entry,) = read_manifests([talk], needs_text=False)
        right = score_speakers(entry, ANN_AND_BOB, SpeakerHypothesis(turns=ANN_AND_BOB))
        wrong = score_speakers(entry, ANN_AND_BOB, SpeakerHypothesis(turns=turns((0.0, 10.0, "A"))))
        evaluation = summarise_speakers([right, wrong])
        assert evaluation.der
        assert evaluation.der.rate == pytest.approx(5 / 18)
        assert evaluation.der.confidence_interval == pytest.approx((0.0, 5 / 9))
        assert evaluation.counted_right == 1
        assert evaluation.cp_wer is None
        assert summarise_speakers([]).der is None

    def test_recordings_with_words_are_transcribed_and_others_only_diarized(self, talk: Path) -> None:
        (entry,) = read_manifests([talk], needs_text=False)
        diarizer = FixedDiarizer(turns((0.0, 4.0, "A"), (5.0, 10.0, "B")))
        recognizer: Any = FixedRecognizer(
            (segment(" One dog.", "A"), segment(" A house.", "B"), segment(" You"))
        )
        silent = Entry(name="silent", path=entry.path, text="")
        scores = [*evaluate_speakers([entry, silent], lambda: diarizer, lambda: recognizer)]
        evaluation = summarise_speakers(score for score in scores if not hasattr(score, "reason"))
        assert diarizer.calls == 2
        assert evaluation.der
        assert evaluation.der.rate == 0.0
        assert evaluation.scores[0].cp_word_errors == ErrorCounts(hits=4, deletions=1, insertions=1)
        assert evaluation.scores[1].cp_word_errors is None

    def test_a_missing_reference_fails_before_anything_is_loaded(self, talk: Path) -> None:
        (talk / "talk.rttm").rename(talk / "other.rttm")
        entry = Entry(name="talk", path=talk / "talk.wav", text="")

        def load() -> FixedDiarizer:
            raise AssertionError("loaded")

        with pytest.raises(ManifestError, match=r"talk\.rttm: no such file"):
            list(evaluate_speakers([entry], load))


class TestCommand:
    @pytest.fixture(autouse=True)
    def diarizer(self, cli: CliRunner, talk: Path) -> None:
        cli.loaders["load_diarizer"] = lambda **given: FixedDiarizer(turns((0.0, 4.0, "A"), (5.0, 9.0, "B")))

    def test_prints_each_recording_and_the_totals(self, cli: CliRunner) -> None:
        outcome = cli.run("eval", "--speakers", "--no-words", "talks", "--json", "result.json")
        assert outcome.code == 0
        assert "  11.11   9.38  10.00    2 of 2      -  talks/talk.wav\n" in outcome.out
        assert "Number of speakers right in 1 of 1 recording.\n" in outcome.out
        result = json.loads(Path("result.json").read_text(encoding="utf-8"))
        assert result["complete"]
        assert result["der"] == {"rate": pytest.approx(1 / 9), "confidence_interval": None}
        assert result["recordings"][0]["errors"]["missed_s"] == pytest.approx(1.0)
        assert result["cp_wer"] is None

    def test_scores_turns_that_are_there(self, cli: CliRunner) -> None:
        folder = Path("found")
        folder.mkdir()
        (folder / "talk.rttm").write_text(REFERENCE, encoding="utf-8")
        outcome = cli.run("eval", "--speakers", "--turns", folder, "talks", "--quiet")
        assert outcome.code == 0
        assert "talks/talk.wav" not in outcome.out
        assert "DER                 0.00" in outcome.out

    def test_turns_that_are_missing_are_named(self, cli: CliRunner) -> None:
        Path("found").mkdir()
        outcome = cli.run("eval", "--speakers", "--turns", "found", "talks")
        assert outcome.code != 0
        assert "found: has no turns for talks/talk.wav; allowed is talk.json or talk.rttm" in outcome.err

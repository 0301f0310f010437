"""Engines that take turns: what each pass is, what counts of several, and where two engines part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from harken import Recognizer
from harken.decoding import DecodeStats
from harken.errors import OptionError
from harken.evaluation import (
    Entry,
    EvalRecording,
    Failure,
    Round,
    divergences,
    failures,
    run_rounds,
    summarise_speed,
)
from harken.evaluation.hypotheses import EvalHypothesis
from harken.evaluation.speed import RecordingResult, Run, WindowTokens, first_divergence
from harken.transcribe import TranscribeOptions
from tiny_models import TOKENIZER

OPTIONS = TranscribeOptions(vad=False, temperatures=(0.0,), suppress_tokens=())


def sound(folder: Path, name: str, text: str | None = None, language: str | None = "en") -> EvalRecording:
    """A recording of one window."""
    path = AUDIO_FORMATS["wav s16"].write(folder / name, WINDOW_S)
    entry = Entry(name=name, path=path, text=text or "", language=language, seconds=WINDOW_S)
    return EvalRecording(entry=entry, has_reference=text is not None)


def reciting(*texts: str) -> Recognizer:
    """A model that says one text a window."""
    return Recognizer(
        TranscriptBackend(*(window_text(0, text, WINDOW_POSITIONS) for text in texts)), TOKENIZER, "recital"
    )


class TestTurns:
    def test_every_recording_is_one_and_engines_begin_in_rotation(self, tmp_path: Path) -> None:
        order: list[str] = []

        class Told(Recognizer):
            def transcribe_many(self, audios, *options, **hooks):
                order.append(self.model)
                return super().transcribe_many(audios, *options, **hooks)

        engines = {
            name: Told(TranscriptBackend(window_text(0, "a", WINDOW_POSITIONS)), TOKENIZER, name)
            for name in "xy"
        }
        sounds = [sound(tmp_path, name) for name in ("a", "b")]
        turns = [*run_rounds(engines, sounds, OPTIONS, repeats=2)]
        assert "".join(order) == "xy" + "xyyx" + "yxxy"  # the first two warm up
        assert [turn.recordings for turn in turns] == [(its,) for its in sounds]
        assert all([*turn.runs] == ["x", "y"] for turn in turns)
        assert all(len(its) == 2 for turn in turns for its in turn.runs.values())

    def test_a_batch_takes_all_of_a_language_together(self, tmp_path: Path) -> None:
        backend = TranscriptBackend(window_text(0, "a", WINDOW_POSITIONS))
        languages = {"a": "en", "b": "de", "c": "en"}
        sounds = [sound(tmp_path, name, language=code) for name, code in languages.items()]
        its = Recognizer(backend, TOKENIZER, "recital")
        turns = [*run_rounds({"x": its}, sounds, replace(OPTIONS, batch_size=2), repeats=1)]
        assert [[one.entry.name for one in turn.recordings] for turn in turns] == [["a", "c"], ["b"]]
        (together,) = turns[0].runs["x"]
        assert (
            together.stats.windows == 2
        )  # and not those of each recording, which count passes that they share

    def test_the_language_is_given(self, tmp_path: Path) -> None:
        backend = TranscriptBackend(window_text(0, "a", WINDOW_POSITIONS))
        its = Recognizer(backend, TOKENIZER, "recital")
        [*run_rounds({"x": its}, [sound(tmp_path, "a", language="de")], OPTIONS, repeats=1)]
        assert backend.prompts[0][1] == TOKENIZER.language_tokens["de"]

    def test_what_a_model_does_not_know_is_refused_before_the_work(self, tmp_path: Path) -> None:
        its = reciting("a")
        sounds = [sound(tmp_path, "a"), sound(tmp_path, "b", language="xx")]
        with pytest.raises(OptionError, match="language='xx'"):
            next(run_rounds({"x": its}, sounds, OPTIONS, repeats=1))
        assert its.backend.mels == []

    def test_a_pass_knows_what_was_said_and_what_failed(self, tmp_path: Path) -> None:
        good, bad = sound(tmp_path, "a"), sound(tmp_path, "b")
        bad.entry.path.write_text("Dear diary")
        turns = [*run_rounds({"x": reciting("ab")}, [good, bad], OPTIONS, repeats=2)]
        (take,) = turns[0].runs["x"][0].results
        assert isinstance(take, RecordingResult)
        assert take.hypothesis == EvalHypothesis(text="ab", language="en", seconds=WINDOW_S)
        assert take.windows == ((0.0, window_text(0, "ab", WINDOW_POSITIONS).tokens),)
        (failure,) = failures(turns)
        assert failure.entry == bad.entry
        assert "is not a recording" in failure.reason


def took(decode_s: float, wall_s: float, entry: Entry, text: str = "") -> Run:
    take = RecordingResult(entry=entry, hypothesis=EvalHypothesis(text=text, seconds=2.0), windows=())
    return Run(wall_s=wall_s, stats=DecodeStats(decode_s=decode_s, forwards=int(decode_s)), results=(take,))


class TestTiming:
    def test_medians_turn_by_turn(self) -> None:
        entry = Entry(name="a", path=Path("a"), text="one two")
        first = tuple(took(s, wall_s, entry) for s, wall_s in ((9.0, 10.0), (1.0, 30.0), (2.0, 20.0)))
        second = tuple(took(s, s, entry) for s in (5.0, 5.0, 500.0))
        its = [EvalRecording(entry=entry, has_reference=False)]
        turns = [Round(recordings=tuple(its), runs={"x": passes}) for passes in (first, second)]
        told = summarise_speed(turns, "x", OPTIONS, scored=True)
        assert (told.stats.decode_s, told.stats.forwards, told.wall_s, told.audio_s) == (7.0, 7, 25.0, 4.0)
        assert told.times_real_time == pytest.approx(4 / 25)
        assert told.evaluation is None

    def test_errors_only_where_the_text_is_known(self) -> None:
        pytest.importorskip("jiwer")
        known, unknown = (Entry(name=name, path=Path(name), text="one two") for name in "ab")
        sounds = (
            EvalRecording(entry=known, has_reference=True),
            EvalRecording(entry=unknown, has_reference=False),
        )
        outcomes = tuple(
            RecordingResult(entry=its.entry, hypothesis=EvalHypothesis(text="one too", seconds=1.0), windows=())
            for its in sounds
        )
        turn = Round(recordings=sounds, runs={"x": (Run(wall_s=1.0, stats=DecodeStats(), results=outcomes),)})
        evaluation = summarise_speed([turn], "x", OPTIONS, scored=True).evaluation
        assert evaluation
        assert evaluation.wer
        assert (evaluation.wer.error_counts.errors, evaluation.wer.error_counts.reference_length) == (1, 2)
        assert summarise_speed([turn], "x", OPTIONS, scored=False).evaluation is None

    def test_nothing_at_all(self) -> None:
        told = summarise_speed([], "x", OPTIONS, scored=True)
        assert (told.wall_s, told.times_real_time, told.results) == (0.0, None, ())


ENTRY = Entry(name="a", path=Path("a"), text="")


def take(*windows: WindowTokens, text: str = "same") -> RecordingResult:
    return RecordingResult(entry=ENTRY, hypothesis=EvalHypothesis(text=text), windows=windows)


# windows of one take, of another, and where they part: start, index, tokens
PARTINGS: list[
    tuple[tuple[WindowTokens, ...], tuple[WindowTokens, ...], tuple[float, int, tuple[int | None, ...]] | None]
]
PARTINGS = [
    (((0.0, (1, 2)),), ((0.0, (1, 2)),), None),
    (((0.0, ()),), (), None),
    (((0.0, (1, 2)),), ((0.0, (1, 3)),), (0.0, 1, (2, 3))),
    (((0.0, (1, 2)),), ((0.0, (1,)),), (0.0, 1, (2, None))),
    (((0.0, (1,)),), ((0.0, (1, 2)),), (0.0, 1, (None, 2))),
    (((0.0, (1,)), (9.0, (4,))), ((0.0, (1,)), (8.0, (4,))), (8.0, 0, (None, 4))),
]


@pytest.mark.parametrize(("one", "other", "expected"), PARTINGS)
def test_where_two_takes_part(one, other, expected) -> None:
    its = first_divergence(take(*one), take(*other, text="other"))
    assert (its and (its.start_s, its.index, its.tokens)) == expected
    assert not (its and its.same_text)


def test_partings_are_told_once_a_recording_in_whatever_pass() -> None:
    same, other = take((0.0, (1,))), take((0.0, (2,)))
    passes = {
        "x": tuple(Run(wall_s=1, stats=DecodeStats(), results=(same,)) for _ in range(3)),
        "y": tuple(Run(wall_s=1, stats=DecodeStats(), results=(it,)) for it in (same, other, other)),
    }
    turn = Round(recordings=(), runs=passes)
    (its,) = divergences([turn, turn], "x", "y")
    assert (its.entry, its.tokens, its.same_text) == (ENTRY, (1, 2), True)


def test_what_could_not_be_read_parts_nowhere() -> None:
    assert first_divergence(take((0.0, (1,))), Failure(entry=ENTRY, reason="empty")) is None

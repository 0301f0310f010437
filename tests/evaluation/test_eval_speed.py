"""Tests of harken.evaluation.speed: rounds of several engines, their medians, and divergences between two engines."""

from dataclasses import replace
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from harken import Recognizer
from harken.decoding import DecodeStats
from harken.evaluation.scoring import EvalHypothesis
from harken.evaluation.speed import RecordingResult, Round, Run, divergences, run_rounds, summarise_speed
from harken.manifests import Entry
from harken.transcribe import TranscribeOptions
from tiny_models import TOKENIZER

OPTIONS = TranscribeOptions(vad=False, temperatures=(0.0,), suppress_tokens=())


def write_recording(folder, name, language="en"):
    """Write a recording of one window."""
    path = AUDIO_FORMATS["wav s16"].write(folder / name, WINDOW_S)
    return Entry(name=name, path=path, text="", language=language, seconds=WINDOW_S, has_reference=False)


def make_recognizer(name="recital", kind=Recognizer):
    """Return a recognizer whose model outputs a letter per window."""
    return kind(TranscriptBackend(window_text(0, "a", WINDOW_POSITIONS)), TOKENIZER, name)


def test_each_recording_is_a_round_and_the_first_engine_rotates(tmp_path):
    order = []

    class RecordingOrder(Recognizer):
        def transcribe_many(self, audios, *options, **hooks):
            order.append(self.model)
            return super().transcribe_many(audios, *options, **hooks)

    engines = {name: make_recognizer(name, RecordingOrder) for name in "xy"}
    recordings = [write_recording(tmp_path, name) for name in ("a", "b")]
    rounds = [*run_rounds(engines, recordings, OPTIONS, repeats=2)]
    assert "".join(order) == "xy" + "xyyx" + "yxxy"  # the first two warm up
    assert [each.recordings for each in rounds] == [(recording,) for recording in recordings]
    assert all([*each.runs] == ["x", "y"] for each in rounds)
    assert all(len(runs) == 2 for each in rounds for runs in each.runs.values())


def test_batched_round_holds_all_recordings_of_a_language(tmp_path):
    recognizer = make_recognizer()
    recordings = [
        write_recording(tmp_path, name, code) for name, code in (("a", "en"), ("b", "de"), ("c", "en"))
    ]
    rounds = [*run_rounds({"x": recognizer}, recordings, replace(OPTIONS, batch_size=2), repeats=1)]
    assert [[one.name for one in each.recordings] for each in rounds] == [["a", "c"], ["b"]]
    (run,) = rounds[0].runs["x"]
    # The sum over recordings would count shared forward passes several times.
    assert run.stats.windows == 2
    languages = [prompt[1] for prompt in recognizer.backend.prompts]
    assert languages[-3:] == [TOKENIZER.language_tokens[code] for code in ("en", "en", "de")]


def make_run(decode_s, wall_s, entry):
    result = RecordingResult(entry=entry, hypothesis=EvalHypothesis(text="", seconds=2.0), windows=())
    return Run(wall_s=wall_s, stats=DecodeStats(decode_s=decode_s, forwards=int(decode_s)), results=(result,))


def test_times_are_sums_of_the_medians_of_the_rounds():
    entry = Entry(name="a", path=Path("a"), text="one two", has_reference=False)
    first = tuple(make_run(s, wall_s, entry) for s, wall_s in ((9.0, 10.0), (1.0, 30.0), (2.0, 20.0)))
    second = tuple(make_run(s, s, entry) for s in (5.0, 5.0, 500.0))
    rounds = [Round(recordings=(entry,), runs={"x": runs}) for runs in (first, second)]
    summary = summarise_speed(rounds, "x", OPTIONS, scored=True)
    assert (summary.stats.decode_s, summary.stats.forwards) == (7.0, 7)
    assert (summary.wall_s, summary.audio_s) == (25.0, 4.0)
    assert summary.times_real_time == pytest.approx(4 / 25)
    assert summary.evaluation is None


ENTRY = Entry(name="a", path=Path("a"), text="")


def make_result(*windows, text="same"):
    return RecordingResult(entry=ENTRY, hypothesis=EvalHypothesis(text=text), windows=windows)


# Windows of one result, of another, and their first divergence: start, index, tokens.
DIVERGENCES = [
    (((0.0, (1, 2)),), ((0.0, (1, 2)),), None),
    (((0.0, ()),), (), None),
    (((0.0, (1, 2)),), ((0.0, (1, 3)),), (0.0, 1, (2, 3))),
    (((0.0, (1, 2)),), ((0.0, (1,)),), (0.0, 1, (2, None))),
    (((0.0, (1,)),), ((0.0, (1, 2)),), (0.0, 1, (None, 2))),
    (((0.0, (1,)), (9.0, (4,))), ((0.0, (1,)), (8.0, (4,))), (8.0, 0, (None, 4))),
]


@pytest.mark.parametrize("text", ["same", "other"])
@pytest.mark.parametrize(("one", "other", "expected"), DIVERGENCES)
def test_the_first_divergence_of_any_run_is_found_once_for_each_recording(one, other, expected, text):
    same, others = make_result(*one), make_result(*other, text=text)
    runs = {
        name: [Run(wall_s=1, stats=DecodeStats(), results=(each,)) for each in results]
        for name, results in {"x": (same, same, same), "y": (same, others, others)}.items()
    }
    bench_round = Round(recordings=(), runs=runs)
    found = divergences([bench_round, bench_round], "x", "y")
    assert [(each.start_s, each.index, each.tokens) for each in found] == ([expected] if expected else [])
    assert all((each.entry, each.same_text) == (ENTRY, text == "same") for each in found)

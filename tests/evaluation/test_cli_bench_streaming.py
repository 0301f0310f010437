"""Streams joined from recordings, runs of live sessions over them, and ``harken bench --streaming``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")

from cli_runner import CliRunner
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.live_sessions import ScriptedLiveSession
from fakes.measured import SCRIPT, TEXTS, KnownTextRecognizer, known_text_recognizer, write_talks
from harken import Recognizer, TranscribeOptions
from harken.evaluation.live_runs import LiveRound, run_live, run_live_rounds, summarise_live
from harken.evaluation.scoring import EvalRecording, Failure
from harken.evaluation.simulation import JoinedStream, join_by_speaker, reference_word_times
from harken.manifests import Entry
from harken.results import Word
from harken.streaming import Event
from tiny_models import TOKENIZER

WORDS = tuple(
    Word(start_s=0.0, end_s=end_s, text=text, probability=1.0)
    for end_s, text in ((0.2, "One"), (0.4, "dog"), (0.8, "A"), (0.9, "big"), (1.0, "mouse"))
)


@pytest.fixture(autouse=True)
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two recordings of one window by one speaker, and a manifest of their texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return write_talks(Path("talks"))


def recording(number: int, **changes: Any) -> EvalRecording:
    entry = Entry(
        name=f"talks/{number}.wav", path=Path(f"talks/{number}.wav"), text=TEXTS[number], language="en"
    )
    known = {"seconds": WINDOW_S, "speaker": "anna", **changes}
    fields = {name: getattr(entry, name) for name in ("name", "path", "text", "language")}
    return EvalRecording(entry=Entry(**{**fields, **known}), has_reference=True)


class TestJoinedStreams:
    def test_recordings_of_a_speaker_are_joined(self) -> None:
        (stream,) = join_by_speaker([recording(0), recording(1)], 0.3)
        entry = stream.entry
        assert (entry.name, entry.text, entry.language) == ("talks/anna", "One dog. A big house", "en")
        assert entry.seconds == pytest.approx(2 * WINDOW_S + 0.3)
        assert stream.has_reference
        first, second = stream.load()
        samples = round(WINDOW_S * 16000)
        assert (len(first), len(second)) == (samples + 4800, samples)
        assert not first[samples:].any()
        assert first[:samples].any()

    def test_single_recording_is_unchanged(self) -> None:
        (stream,) = join_by_speaker([recording(0)], 0.3)
        assert stream.entry == recording(0).entry
        (samples,) = stream.load()
        assert len(samples) == round(WINDOW_S * 16000)

    def test_speaker_folder_and_language_separate_streams(self) -> None:
        others = (
            recording(1, speaker="berta"),
            recording(0, name="walks/0.wav"),
            recording(1, language="de"),
            recording(1, speaker=None),
        )
        streams = join_by_speaker([recording(0), *others, recording(1)], 0.0)
        assert sorted(len(stream.recordings) for stream in streams) == [1, 1, 1, 1, 2]

    def test_unknown_length_stays_unknown(self) -> None:
        assert JoinedStream(recordings=(recording(0), recording(1, seconds=None))).entry.seconds is None

    def test_reference_words_have_stream_times(self) -> None:
        class Aligned(Recognizer):
            """A recognizer that aligns every text with the middle of its recording."""

            def align(self, audio: Any, text: str, *options: Any, **changes: Any) -> tuple[Word, ...]:
                asked.append(text)
                return (Word(start_s=0.1, end_s=0.2, text=text, probability=1.0),)

        asked: list[str] = []
        recognizer = Aligned(TranscriptBackend(window_text(0)), TOKENIZER, "recital")
        stream = JoinedStream(recordings=(recording(0), recording(1, text="A BIG HOUSE")), gap_s=0.3)
        words = reference_word_times(recognizer, stream, stream.load(), TranscribeOptions())
        assert asked == ["One dog.", "a big house"]
        assert [word.end_s for word in words] == [0.2, pytest.approx(WINDOW_S + 0.5)]

    def test_reference_words_are_transcribed_without_text(self) -> None:
        recognizer = Recognizer(
            TranscriptBackend(window_text(0, " One dog", WINDOW_POSITIONS)), TOKENIZER, "recital"
        )
        stream = JoinedStream(
            recordings=(EvalRecording(entry=recording(0, text="").entry, has_reference=False),)
        )
        options = TranscribeOptions(vad=False, hallucination_threshold=None, suppress_tokens=())
        words = reference_word_times(recognizer, stream, stream.load(), options)
        assert "".join(word.text for word in words) == " One dog"


class TestLiveRuns:
    def test_run_has_texts_counts_and_latencies(self) -> None:
        run = run_live(ScriptedLiveSession(SCRIPT), np.zeros(24000, np.float32), 320, WORDS, language="english")
        assert (run.interim_text, run.final_text) == (" One dog.  A pig house", " One dog. A big house")
        assert (run.retractions, run.flickered, run.revised, run.updates, run.load_changes) == (
            0,
            1,
            1,
            5,
            0,
        )
        found = run.latencies
        assert (len(found.words), found.unmatched_hypothesis_words, found.unmatched_reference_words) == (
            4,
            1,
            1,
        )
        delays = [
            (word.text, word.interim_latency.computation_unaware_s, word.commit_latency.computation_unaware_s)
            for word in found.words
        ]
        expected = [("one", 0.1, 0.1), ("dog", 0.1, 0.1), ("a", 0.1, 0.1), ("big", 0.3, 0.3)]
        for (text, *got), (word, *wanted) in zip(delays, expected, strict=True):
            assert (text, got) == (word, pytest.approx(wanted))
        assert all(
            word.commit_latency.computation_aware_s >= word.commit_latency.computation_unaware_s
            for word in found.words
        )
        assert run.cost.audio_s == 1.5
        assert 0 < run.cost.wall_s < 1

    def test_sessions_alternate_and_the_median_pass_counts(self) -> None:
        rounds, order = live_rounds(repeats=3)
        assert [live_round.stream.entry.name for live_round in rounds] == ["talks/0.wav", "talks/1.wav"]
        assert [len(runs) for runs in rounds[0].runs.values()] == [3, 3]
        # Both warm up, and then alternate in being first.
        assert "".join(order) == "ab" + "abbaab" + "baabba"
        summary = summarise_live(rounds, "a", TranscribeOptions())
        assert len(summary.runs) == 2
        assert summary.cost.audio_s == pytest.approx(2 * WINDOW_S)
        middle = sorted(run.cost.wall_s for run in rounds[0].runs["a"])[1]
        assert summary.runs[0].cost.wall_s == middle

    def test_error_rates_against_the_reference(self) -> None:
        rounds, _ = live_rounds(repeats=1)
        summary = summarise_live(rounds, "a", TranscribeOptions())
        assert summary.final_wer
        assert summary.offline_wer
        assert (summary.final_wer.error_counts.errors, summary.final_wer.error_counts.reference_length) == (
            3 + 2,
            5,
        )
        assert summary.offline_wer.rate == 0
        assert summary.relative_wer_increase is None  # relative to nothing
        assert summary.flicker == pytest.approx(2 / 10)

    def test_summary_of_no_rounds_is_empty(self) -> None:
        summary = summarise_live([], "a", TranscribeOptions())
        assert (summary.commit_latency_aware, summary.final_wer, summary.flicker) == (None, None, None)

    def test_unreadable_recording_is_a_failure(self) -> None:
        Path("talks/0.wav").write_text("Dear diary")
        failure, live_round = outcomes(repeats=1)[0]
        assert isinstance(failure, Failure)
        assert failure.entry.name == "talks/0.wav"
        assert isinstance(live_round, LiveRound)


def outcomes(repeats: int) -> tuple[list[LiveRound | Failure], list[str]]:
    """Run two sessions of `SCRIPT` over each recording; return the outcomes and the order of opening."""
    order: list[str] = []

    def opening(name: str) -> Any:
        def open_session(options: TranscribeOptions) -> ScriptedLiveSession:
            assert options.language == "en"
            order.append(name)
            return ScriptedLiveSession(SCRIPT)

        return open_session

    rounds = run_live_rounds(
        known_text_recognizer(),
        {name: opening(name) for name in "ab"},
        [JoinedStream(recordings=(recording(number),)) for number in range(2)],
        TranscribeOptions(vad=False, hallucination_threshold=None, suppress_tokens=()),
        block_samples=320,
        repeats=repeats,
    )
    return [*rounds], order


def live_rounds(repeats: int) -> tuple[list[LiveRound], list[str]]:
    found, order = outcomes(repeats)
    return [outcome for outcome in found if isinstance(outcome, LiveRound)], order


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    return CliRunner(capsys, monkeypatch)


OPTIONS = ("--no-vad", "--temperatures", "0", "--suppress-tokens", "", "--hallucination-threshold", "none")


def bench(cli: CliRunner, *arguments: str, texts: Sequence[str] = TEXTS) -> tuple[Any, KnownTextRecognizer]:
    recognizer = known_text_recognizer(texts)
    cli.monkeypatch.setattr("harken.cli.model_options.load", lambda **given: recognizer)
    return cli.run("bench", "talks", "--streaming", "--repeat", "1", *OPTIONS, *arguments), recognizer


def table_rows(text: str) -> dict[str, list[str]]:
    """Return the rows of a table by their labels."""
    rows = (re.split(r"  +", line.strip()) for line in text.splitlines())
    return {label: cells for label, *cells in rows if cells}


class TestCommand:
    def test_table_compares_the_sessions(self, cli: CliRunner) -> None:
        outcome, recognizer = bench(cli, "--delay", "low,medium", "--finals", "streamed")
        assert (outcome.code, outcome.err) == (0, "")
        head, streams, sessions, *_ = outcome.out.splitlines()
        assert (head, streams) == ("recital, fixed logits", "2 streams of 2 recordings: 1.0 s of audio")
        assert sessions.split() == ["low", "streamed", "medium", "streamed"]
        rows = table_rows(outcome.out)
        assert rows["window, hop, history, s"] == ["2, 0.5, 4", "2, 0.5, 4"]
        assert rows["WER offline, %"] == ["0.00", "0.00"]
        assert rows["WER of the segments, %"] == ["100.00", "100.00"]
        assert rows["committed text taken back"] == ["0", "0"]
        assert rows["words timed"] == ["5", "5"]
        assert {(live.delay, live.finals) for _, live in recognizer.opened} == {
            ("low", "streamed"),
            ("medium", "streamed"),
        }
        assert all(not options.vad for options, _ in recognizer.opened)

    def test_joined_streams_are_reported(self, cli: CliRunner) -> None:
        outcome, _ = bench(cli, "--join", "0.0", "--json", "out.json", texts=["One dog. A big house"])
        assert "1 stream of 2 recordings: 1.0 s of audio\n" in outcome.out
        report = json.loads(Path("out.json").read_text(encoding="utf-8"))
        (stream,) = report["streams"]
        assert stream["audio"] == "talks/anna"
        assert stream["low exact"]["final"] == "One dog. A big house"

    def test_json_holds_all_results(self, cli: CliRunner) -> None:
        bench(cli, "--hop-frames", "40", "--json", "out.json")
        report = json.loads(Path("out.json").read_text(encoding="utf-8"))
        assert [*report] == ["by", "engine", "complete", "repeats", "configs", "streams", "failed"]
        (session,) = report["configs"].values()
        assert (session["options"]["hop_frames"], session["config"]["window_frames"]) == (40, 200)
        assert session["words"] == {"timed": 5, "unmatched_hypothesis": 5, "unmatched_reference": 0}
        assert session["commit"]["aware"]["p50"] >= session["commit"]["unaware"]["p50"]
        assert session["cost"]["audio_s"] == pytest.approx(2 * WINDOW_S)
        slowest = [word["commit_latency"]["computation_aware_s"] for word in session["slowest"]]
        assert slowest == sorted(slowest, reverse=True)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--speculative"], "harken: --speculative and --streaming exclude each other"),
            (["--delay", "low,soon"], "harken: --delay 'soon': allowed is minimal, low, medium, high, or"),
            (["--finals", "rough"], "harken: --finals 'rough': allowed is exact or streamed"),
            (["--join", "-1"], "harken: Invalid value for '--join'"),
        ],
    )
    def test_bad_arguments_fail_before_loading_a_model(
        self, cli: CliRunner, arguments: list[str], message: str
    ) -> None:
        cli.use_texts(window_text(0))
        outcome = cli.run("bench", "talks", "--streaming", *arguments)
        assert (outcome.out, cli.loaded) == ("", [])
        assert outcome.code == 2
        assert outcome.err.startswith(message)


def test_scripted_events_are_in_order() -> None:
    samples = [event.emitted_samples for event in SCRIPT]
    assert samples == sorted(samples)
    assert all(isinstance(event, Event) for event in SCRIPT)

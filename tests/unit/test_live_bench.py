"""Streams made of recordings, takes of live sessions over them, and ``harken bench --streaming``."""

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

from audio_files import AUDIO_FORMATS
from faces import Face
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.live_sessions import ScriptedLiveSession, final_segment, interim_text, speech_ended, speech_started
from harken import Recognizer, TranscribeOptions
from harken.cli.exits import Stop
from harken.evaluation import Entry, EvalRecording, Failure
from harken.evaluation.live_runs import LiveRound, LiveRun, run_live, run_live_rounds, summarise_live
from harken.evaluation.simulation import JoinedStream, join_by_speaker, reference_word_times
from harken.results import Word
from harken.streaming import Event, StreamOptions
from tiny_models import TOKENIZER

SAID = ("One dog.", "A big house")
SCRIPT = (
    speech_started(0.0),
    interim_text(0.3, " One", " fog"),
    interim_text(0.5, " One dog."),
    final_segment(0.6, " One dog."),
    speech_ended(0.6),
    speech_started(0.7),
    interim_text(0.9, " A pig", " house"),
    final_segment(1.2, " A big house"),
    speech_ended(1.2),
)
WORDS = tuple(
    Word(start_s=0.0, end_s=end_s, text=text, probability=1.0)
    for end_s, text in ((0.2, "One"), (0.4, "dog"), (0.8, "A"), (0.9, "big"), (1.0, "mouse"))
)


@pytest.fixture(autouse=True)
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two recordings of one window by one speaker, and a manifest of what is said in them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    folder = Path("talks")
    folder.mkdir()
    lines = []
    for number, text in enumerate(SAID):
        AUDIO_FORMATS["wav s16"].write(folder / str(number), WINDOW_S)
        its = {"audio": f"{number}.wav", "text": text, "language": "en", "seconds": WINDOW_S, "speaker": "anna"}
        lines.append(f"{json.dumps(its)}\n")
    (folder / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def sound(number: int, **changes: Any) -> EvalRecording:
    entry = Entry(
        name=f"talks/{number}.wav", path=Path(f"talks/{number}.wav"), text=SAID[number], language="en"
    )
    known = {"seconds": WINDOW_S, "speaker": "anna", **changes}
    fields = {name: getattr(entry, name) for name in ("name", "path", "text", "language")}
    return EvalRecording(entry=Entry(**{**fields, **known}), has_reference=True)


class TestReels:
    def test_a_speaker_is_one_stream(self) -> None:
        (reel,) = join_by_speaker([sound(0), sound(1)], 0.3)
        entry = reel.entry
        assert (entry.name, entry.text, entry.language) == ("talks/anna", "One dog. A big house", "en")
        assert entry.seconds == pytest.approx(2 * WINDOW_S + 0.3)
        assert reel.has_reference
        first, second = reel.load()
        samples = round(WINDOW_S * 16000)
        assert (len(first), len(second)) == (samples + 4800, samples)
        assert not first[samples:].any()
        assert first[:samples].any()

    def test_one_recording_stays_what_it_is(self) -> None:
        (reel,) = join_by_speaker([sound(0)], 0.3)
        assert reel.entry == sound(0).entry
        (samples,) = reel.load()
        assert len(samples) == round(WINDOW_S * 16000)

    def test_who_speaks_where_and_in_which_language_tells_streams_apart(self) -> None:
        others = (
            sound(1, speaker="berta"),
            sound(0, name="walks/0.wav"),
            sound(1, language="de"),
            sound(1, speaker=None),
        )
        reels = join_by_speaker([sound(0), *others, sound(1)], 0.0)
        assert sorted(len(reel.recordings) for reel in reels) == [1, 1, 1, 1, 2]

    def test_a_length_that_is_not_known(self) -> None:
        assert JoinedStream(recordings=(sound(0), sound(1, seconds=None))).entry.seconds is None

    def test_words_have_the_times_of_the_stream(self) -> None:
        class Aligned(Recognizer):
            """Finds every text in the middle of its recording."""

            def align(self, audio: Any, text: str, *options: Any, **changes: Any) -> tuple[Word, ...]:
                asked.append(text)
                return (Word(start_s=0.1, end_s=0.2, text=text, probability=1.0),)

        asked: list[str] = []
        recognizer = Aligned(TranscriptBackend(window_text(0)), TOKENIZER, "recital")
        reel = JoinedStream(recordings=(sound(0), sound(1, text="A BIG HOUSE")), gap_s=0.3)
        words = reference_word_times(recognizer, reel, reel.load(), TranscribeOptions())
        assert asked == ["One dog.", "a big house"]
        assert [its.end_s for its in words] == [0.2, pytest.approx(WINDOW_S + 0.5)]

    def test_where_the_text_is_not_known_they_are_transcribed(self) -> None:
        recognizer = Recognizer(
            TranscriptBackend(window_text(0, " One dog", WINDOW_POSITIONS)), TOKENIZER, "recital"
        )
        reel = JoinedStream(recordings=(EvalRecording(entry=sound(0, text="").entry, has_reference=False),))
        options = TranscribeOptions(vad=False, hallucination_threshold=None, suppress_tokens=())
        words = reference_word_times(recognizer, reel, reel.load(), options)
        assert "".join(its.text for its in words) == " One dog"


class TestTakes:
    def test_what_came_of_a_session(self) -> None:
        take = run_live(
            ScriptedLiveSession(SCRIPT), np.zeros(24000, np.float32), 320, WORDS, language="english"
        )
        assert (take.interim_text, take.final_text) == (" One dog.  A pig house", " One dog. A big house")
        assert (take.retractions, take.flickered, take.revised, take.updates, take.load_changes) == (
            0,
            1,
            1,
            5,
            0,
        )
        found = take.latencies
        assert (len(found.words), found.unmatched_hypothesis_words, found.unmatched_reference_words) == (
            4,
            1,
            1,
        )
        delays = [
            (its.text, its.interim_latency.computation_unaware_s, its.commit_latency.computation_unaware_s)
            for its in found.words
        ]
        expected = [("one", 0.1, 0.1), ("dog", 0.1, 0.1), ("a", 0.1, 0.1), ("big", 0.3, 0.3)]
        for (text, *got), (word, *wanted) in zip(delays, expected, strict=True):
            assert (text, got) == (word, pytest.approx(wanted))
        assert all(
            its.commit_latency.computation_aware_s >= its.commit_latency.computation_unaware_s
            for its in found.words
        )
        assert take.cost.audio_s == 1.5
        assert 0 < take.cost.wall_s < 1

    def test_sessions_take_turns_and_the_middle_pass_counts(self) -> None:
        turns, order = takes(repeats=3)
        assert [turn.stream.entry.name for turn in turns] == ["talks/0.wav", "talks/1.wav"]
        assert [len(its) for its in turns[0].runs.values()] == [3, 3]
        # Both warm up, and then begin in turn.
        assert "".join(order) == "ab" + "abbaab" + "baabba"
        told = summarise_live(turns, "a", TranscribeOptions())
        assert len(told.runs) == 2
        assert told.cost.audio_s == pytest.approx(2 * WINDOW_S)
        middle = sorted(its.cost.wall_s for its in turns[0].runs["a"])[1]
        assert told.runs[0].cost.wall_s == middle

    def test_errors_of_what_is_known(self) -> None:
        turns, _ = takes(repeats=1)
        told = summarise_live(turns, "a", TranscribeOptions())
        assert told.final_wer
        assert told.offline_wer
        assert (told.final_wer.error_counts.errors, told.final_wer.error_counts.reference_length) == (3 + 2, 5)
        assert told.offline_wer.rate == 0
        assert told.relative_wer_increase is None  # relative to nothing
        assert told.flicker == pytest.approx(2 / 10)

    def test_nothing_at_all(self) -> None:
        told = summarise_live([], "a", TranscribeOptions())
        assert (told.commit_latency_aware, told.final_wer, told.flicker) == (None, None, None)

    def test_a_recording_that_fails(self) -> None:
        Path("talks/0.wav").write_text("Dear diary")
        failure, turn = outcomes(repeats=1)[0]
        assert isinstance(failure, Failure)
        assert failure.entry.name == "talks/0.wav"
        assert isinstance(turn, LiveRound)


def outcomes(repeats: int) -> tuple[list[LiveRound | Failure], list[str]]:
    """Two sessions that say all of `SCRIPT` over each recording, and in which order they were opened."""
    order: list[str] = []

    def opening(name: str) -> Any:
        def open_session(options: TranscribeOptions) -> ScriptedLiveSession:
            assert options.language == "en"
            order.append(name)
            return ScriptedLiveSession(SCRIPT)

        return open_session

    turns = run_live_rounds(
        reciting(),
        {name: opening(name) for name in "ab"},
        [JoinedStream(recordings=(sound(number),)) for number in range(2)],
        TranscribeOptions(vad=False, hallucination_threshold=None, suppress_tokens=()),
        block_samples=320,
        repeats=repeats,
    )
    return [*turns], order


def takes(repeats: int) -> tuple[list[LiveRound], list[str]]:
    found, order = outcomes(repeats)
    return [its for its in found if isinstance(its, LiveRound)], order


class Reciting(Recognizer):
    """Transcribes by heart, aligns everything with the end of the sound, and streams `SCRIPT`."""

    opened: list[tuple[TranscribeOptions, StreamOptions]]

    def align(self, audio: Any, text: str, *options: Any, **changes: Any) -> tuple[Word, ...]:
        return tuple(Word(start_s=0.0, end_s=0.1, text=word, probability=1.0) for word in text.split())

    def stream(self, options: Any = None, /, *, live: Any = None, **changes: Any) -> Any:
        self.opened.append((options, live))
        return ScriptedLiveSession(SCRIPT)


def reciting(said: Sequence[str] = SAID) -> Reciting:
    """A model that says the texts one after another; what is joined, at once."""
    its = Reciting(
        TranscriptBackend(*(window_text(0, text, WINDOW_POSITIONS) for text in said)), TOKENIZER, "recital"
    )
    its.opened = []
    return its


@pytest.fixture
def face(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Face:
    return Face(capsys, monkeypatch)


OPTIONS = ("--no-vad", "--temperatures", "0", "--suppress-tokens", "", "--hallucination-threshold", "none")


def bench(face: Face, *arguments: str, said: Sequence[str] = SAID) -> tuple[Any, Reciting]:
    recognizer = reciting(said)
    face.monkeypatch.setattr("harken.cli.options.load", lambda **given: recognizer)
    return face.run("bench", "talks", "--streaming", "--repeat", "1", *OPTIONS, *arguments), recognizer


def figures(text: str) -> dict[str, list[str]]:
    """Lines of the table by their labels."""
    rows = (re.split(r"  +", line.strip()) for line in text.splitlines())
    return {label: cells for label, *cells in rows if cells}


class TestCommand:
    def test_the_table(self, face: Face) -> None:
        outcome, recognizer = bench(face, "--delay", "low,medium", "--finals", "streamed")
        assert (outcome.code, outcome.err) == (0, "")
        head, streams, ways, *_ = outcome.out.splitlines()
        assert (head, streams) == ("recital, fixed logits", "2 streams of 2 recordings: 1.0 s of sound")
        assert ways.split() == ["low", "streamed", "medium", "streamed"]
        rows = figures(outcome.out)
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

    def test_joined(self, face: Face) -> None:
        outcome, _ = bench(face, "--join", "0.0", "--json", "out.json", said=["One dog. A big house"])
        assert "1 stream of 2 recordings: 1.0 s of sound\n" in outcome.out
        told = json.loads(Path("out.json").read_text(encoding="utf-8"))
        (stream,) = told["streams"]
        assert stream["audio"] == "talks/anna"
        assert stream["low exact"]["final"] == "One dog. A big house"

    def test_json_holds_everything(self, face: Face) -> None:
        bench(face, "--hop", "40", "--json", "out.json")
        told = json.loads(Path("out.json").read_text(encoding="utf-8"))
        assert [*told] == ["by", "engine", "complete", "repeats", "settings", "streams", "failed"]
        (its,) = told["settings"].values()
        assert (its["options"]["hop"], its["setting"]["window_frames"]) == (40, 200)
        assert its["words"] == {"timed": 5, "unspoken": 5, "unheard": 0}
        assert its["commit"]["aware"]["p50"] >= its["commit"]["unaware"]["p50"]
        assert its["cost"]["audio_s"] == pytest.approx(2 * WINDOW_S)
        slowest = [word["commit"]["aware_s"] for word in its["slowest"]]
        assert slowest == sorted(slowest, reverse=True)

    def test_a_recording_that_fails_is_told_and_the_rest_done(self, face: Face) -> None:
        Path("talks/1.wav").write_text("Dear diary")
        outcome, _ = bench(face)
        assert outcome.code == 1
        assert outcome.err.startswith("harken: talks/1.wav: is not a recording")
        assert "\n1 stream of 1 recording: 0.5 s" in outcome.out

    def test_an_interruption_shows_what_was_done(self, face: Face) -> None:
        def interrupted(session: Any, samples: Any, *rest: Any, **options: Any) -> LiveRun:
            heard.append(len(samples))
            if len(heard) > 2:
                raise Stop(130, "interrupted")
            return run_live(session, samples, *rest, **options)

        heard: list[int] = []
        face.monkeypatch.setattr("harken.evaluation.live_runs.hear", interrupted)
        outcome, _ = bench(face, "--json", "out.json")
        assert (outcome.code, outcome.err) == (130, "harken: interrupted after 1 of 2 recordings\n")
        assert "\n1 stream of 1 recording: 0.5 s" in outcome.out
        assert json.loads(Path("out.json").read_text(encoding="utf-8"))["complete"] is False

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--speculative"], "harken: --speculative and --streaming exclude each other"),
            (["--delay", "low,soon"], "harken: delay='soon': allowed is minimal, low, medium, high, or"),
            (["--finals", "rough"], "harken: finals='rough': allowed is exact or streamed"),
            (["--join", "-1"], "harken: Invalid value for '--join'"),
        ],
    )
    def test_refusals_before_the_work(self, face: Face, arguments: list[str], complaint: str) -> None:
        face.recites(window_text(0))
        outcome = face.run("bench", "talks", "--streaming", *arguments)
        assert (outcome.out, face.loaded) == ("", [])
        assert outcome.code == 2
        assert outcome.err.startswith(complaint)


def test_events_of_the_script_are_in_order() -> None:
    samples = [event.emitted_samples for event in SCRIPT]
    assert samples == sorted(samples)
    assert all(isinstance(event, Event) for event in SCRIPT)

"""Streams joined from recordings, runs of live sessions over them, and ``harken bench --streaming``."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")

from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.live_sessions import ScriptedLiveSession
from fakes.measured import OPTIONS, SCRIPT, TEXTS, known_text_recognizer, read_report, table_rows
from harken import Recognizer, TranscribeOptions
from harken.errors import OptionError
from harken.evaluation.live_runs import (
    JoinedStream,
    LiveCounts,
    join_by_speaker,
    reference_word_times,
    run_live,
    run_live_rounds,
    summarise_live,
)
from harken.manifests import Entry
from harken.results import Word
from tiny_models import TOKENIZER

pytestmark = pytest.mark.usefixtures("talks")

WORDS = tuple(
    Word(start_s=0.0, end_s=end_s, text=text, probability=1.0)
    for end_s, text in ((0.2, "One"), (0.4, "dog"), (0.8, "A"), (0.9, "big"), (1.0, "mouse"))
)
NO_VAD = TranscribeOptions(vad=False, hallucination_threshold=None, suppress_tokens=())


def recording(number, **changes):
    name = f"talks/{number}.wav"
    entry = Entry(
        **{"name": name, "path": Path(name), "text": TEXTS[number], "language": "en"},
        **{"seconds": WINDOW_S, "speaker": "anna"},
    )
    return replace(entry, **changes)


def test_recordings_of_a_speaker_are_joined_with_the_times_of_their_words():
    (stream,) = join_by_speaker([recording(0), recording(1, text="A BIG HOUSE")], 0.3)
    entry = stream.entry
    assert (entry.name, entry.text, entry.language) == ("talks/anna", "One dog. A BIG HOUSE", "en")
    assert entry.seconds == pytest.approx(2 * WINDOW_S + 0.3)
    assert entry.has_reference
    first, second = stream.load()
    samples = round(WINDOW_S * 16000)
    assert (len(first), len(second)) == (samples + 4800, samples)
    assert not first[samples:].any()
    assert first[:samples].any()
    recognizer = Recognizer(TranscriptBackend(window_text(0)), TOKENIZER, "recital")
    spoken = Word(start_s=0.1, end_s=0.2, text="word", probability=1.0)
    recognizer.align = Mock(return_value=(spoken,))
    words = reference_word_times(recognizer, stream, (first, second), TranscribeOptions())
    assert [call.args[1] for call in recognizer.align.mock_calls] == ["One dog.", "a big house"]
    assert [word.end_s for word in words] == [0.2, pytest.approx(WINDOW_S + 0.5)]


def test_speaker_folder_and_language_separate_streams():
    others = (
        *(recording(1, speaker="berta"), recording(0, name="walks/0.wav")),
        *(recording(1, language="de"), recording(1, speaker=None)),
    )
    streams = join_by_speaker([recording(0), *others, recording(1)], 0.0)
    assert sorted(len(stream.recordings) for stream in streams) == [1, 1, 1, 1, 2]


def test_reference_words_are_transcribed_without_text():
    backend = TranscriptBackend(window_text(0, " One dog", WINDOW_POSITIONS))
    stream = JoinedStream(recordings=(recording(0, text="", has_reference=False),))
    recognizer = Recognizer(backend, TOKENIZER, "recital")
    words = reference_word_times(recognizer, stream, stream.load(), NO_VAD)
    assert "".join(word.text for word in words) == " One dog"


def test_a_text_that_is_not_that_of_its_recording_fails_by_its_name_and_the_others_are_measured():
    recognizer = known_text_recognizer()
    spoken = recognizer.align(None, "One dog.")
    too_long = OptionError("text", "999 tokens", "at most 445 tokens for one window")
    recognizer.align = Mock(side_effect=[too_long, spoken])
    streams = [JoinedStream(recordings=(recording(number),)) for number in range(2)]
    sessions = {"a": lambda options: ScriptedLiveSession(SCRIPT)}
    failure, live_round = run_live_rounds(recognizer, sessions, streams, NO_VAD, block_samples=320, repeats=1)
    assert failure.reason.startswith(f"{Path('talks/0.wav')}: text='999 tokens'")
    assert live_round.stream.entry.name == "talks/1.wav"


def test_run_has_texts_counts_and_latencies():
    run = run_live(ScriptedLiveSession(SCRIPT), np.zeros(24000, np.float32), 320, WORDS, language="en")
    assert (run.interim_text, run.final_text) == (" One dog.  A pig house", " One dog. A big house")
    assert run.counts == LiveCounts(updates=5, flickered=1, revised=1)
    found = run.latencies
    unmatched = (found.unmatched_hypothesis_words, found.unmatched_reference_words)
    assert (len(found.words), *unmatched) == (4, 1, 1)
    delays_s = {"one": 0.1, "dog": 0.1, "a": 0.1, "big": 0.3}
    for of in (lambda word: word.interim_latency, lambda word: word.commit_latency):
        delays = {word.text: of(word).computation_unaware_s for word in found.words}
        assert delays == pytest.approx(delays_s)
        assert all(of(word).computation_aware_s >= delays[word.text] for word in found.words)
    assert run.cost.audio_s == 1.5
    assert 0 < run.cost.wall_s < 1


def test_sessions_alternate_and_the_median_pass_counts():
    order = []

    def open_session(name, options):
        assert options.language == "en"
        order.append(name)
        return ScriptedLiveSession(SCRIPT)

    sessions = {name: partial(open_session, name) for name in "ab"}
    streams = [JoinedStream(recordings=(recording(number),)) for number in range(2)]
    rounds = [
        *run_live_rounds(known_text_recognizer(), sessions, streams, NO_VAD, block_samples=320, repeats=3)
    ]
    assert [live_round.stream.entry.name for live_round in rounds] == ["talks/0.wav", "talks/1.wav"]
    assert [len(runs) for runs in rounds[0].runs.values()] == [3, 3]
    # Both warm up, and then alternate in being first.
    assert "".join(order) == "ab" + "abbaab" + "baabba"
    summary = summarise_live(rounds, "a", TranscribeOptions())
    assert len(summary.runs) == 2
    assert summary.cost.audio_s == pytest.approx(2 * WINDOW_S)
    middle = sorted(run.cost.wall_s for run in rounds[0].runs["a"])[1]
    assert summary.runs[0].cost.wall_s == middle
    counts = summary.final_wer.error_counts
    assert (counts.errors, counts.reference_length) == (3 + 2, 5)
    assert summary.offline_wer.rate == 0
    assert summary.relative_wer_increase is None  # relative to nothing
    better = replace(summary.final_wer, rate=summary.final_wer.rate / 2)
    assert replace(summary, offline_wer=better).relative_wer_increase == 1.0
    assert summary.flicker == pytest.approx(2 / 10)


def bench(cli, *arguments, texts=TEXTS):
    recognizer = known_text_recognizer(texts)
    cli.loaders["load"] = lambda **given: recognizer
    return cli.run("bench", "talks", "--streaming", "--repeat", "1", *OPTIONS, *arguments), recognizer


def test_table_compares_the_sessions(cli):
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
    opened = {(live.delay, live.finals) for _, live in recognizer.opened}
    assert opened == {("low", "streamed"), ("medium", "streamed")}
    assert all(not options.vad for options, _ in recognizer.opened)


def test_joined_streams_are_reported(cli):
    outcome, _ = bench(cli, "--join", "0.0", "--json", "out.json", texts=["One dog. A big house"])
    assert "1 stream of 2 recordings: 1.0 s of audio\n" in outcome.out
    (stream,) = read_report()["streams"]
    assert (stream["audio"], stream["low exact"]["final"]) == ("talks/anna", "One dog. A big house")


def test_json_holds_all_results(cli):
    bench(cli, "--hop-frames", "40", "--json", "out.json")
    report = read_report()
    assert [*report] == ["by", "engine", "complete", "repeats", "configs", "streams", "failed"]
    assert (report["complete"], report["failed"]) == (True, [])
    (session,) = report["configs"].values()
    assert (session["options"]["hop_frames"], session["config"]["window_frames"]) == (40, 200)
    assert session["words"] == {"timed": 5, "unmatched_hypothesis": 5, "unmatched_reference": 0}
    assert session["commit"]["aware"]["p50"] >= session["commit"]["unaware"]["p50"]
    assert session["cost"]["audio_s"] == pytest.approx(2 * WINDOW_S)
    slowest = [word["commit_latency"]["computation_aware_s"] for word in session["slowest"]]
    assert slowest == sorted(slowest, reverse=True)

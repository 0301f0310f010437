"""``harken listen`` over a fake session: its sources, its output and its files, whatever ends it."""

import errno
import io
import json
import os
import re
import signal
import sys
import wave
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from audio_files import tone
from cli_runner import eventually
from fakes.live_sessions import TalkingSession, hears
from fakes.small_disk import SmallDisk
from harken.audio import load_audio
from harken.cli.exits import SIGNALS
from harken.cli.kept_files import KeptFile
from harken.errors import OutputError
from harken.streaming import LoadChanged
from harken.streaming.config import StreamOptions
from harken.transcribe import TranscribeOptions

SAID = ["word0 word1 word2 word3 word4", "word5 word6 word7 word8 word9", "word10 word11"]
TONE = (tone(1.2) * 32768).astype("<i2")
FULL = "cannot be written: No space left on device"
KEPT = ("--record", "a.wav", "-o", "a.txt")


@pytest.fixture
def piped(monkeypatch):
    """Return a function that puts bytes on standard input."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture
def once_fed(monkeypatch):
    """Return a function that replaces every live session by one that acts once, after a number of samples."""

    def once_fed(samples, act):
        def on_feed(_):
            if len(session.samples) >= samples and not acted:
                acted.append(True)
                act()

        acted, session = [], TalkingSession(on_feed)
        return hears(monkeypatch, session)

    return once_fed


class TestSources:
    @pytest.mark.parametrize("arguments", [["talk.wav"], ["-"], [], ["-", "--pcm"], ["--pcm"]])
    def test_file_or_standard_input_is_transcribed(self, cli, session, talk, piped, arguments):
        is_raw = "--pcm" in arguments
        piped(TONE.tobytes() if is_raw else talk.read_bytes())
        outcome = cli.run("listen", *arguments)
        assert (outcome.code, outcome.out.splitlines(), outcome.err) == (0, SAID, "")
        expected = (TONE / 32768).astype(np.float32) if is_raw else load_audio(talk)
        assert np.array_equal(session.samples, expected)
        assert max(map(len, session.blocks)) <= (800 if is_raw else 1600)
        assert session.closed

    @pytest.mark.parametrize("right_over_left", [0, -1])  # of -1 the mean would be silence
    def test_raw_floats_are_mixed_and_resampled(self, cli, session, piped, right_over_left):
        left = tone(1.0, 48_000) / (1 - right_over_left)
        right = right_over_left * left
        piped(np.stack([left, right], axis=1).astype("<f4").tobytes())
        form = ["--pcm-format", "f32le", "--pcm-rate", 48_000, "--pcm-channels", 2]
        assert cli.run("listen", "-", "--pcm", *form).code == 0
        assert len(session.samples) == 16_000
        inner = slice(-100)  # the filter lacks samples after the end
        assert np.abs(session.samples - tone(1.0) / 2)[inner].max() < 1e-4

    @pytest.mark.parametrize(
        ("data", "form", "reason"),
        [
            (TONE.tobytes()[:-1], [], "ends with 1 of the 2 bytes of a sample; given as s16le, channels: 1"),
            (TONE.tobytes()[:-3], ["--pcm-channels", 2], "ends with 1 of the 4 bytes of a sample"),
            (b"", [], "is empty (0 bytes)"),
            (b"\xff" * 64, ["--pcm-format", "f32le"], "at 0.00 s: a sample is nan or infinite"),
            (
                np.full(64, 500, "<f4").tobytes(),
                ["--pcm-format", "f32le"],
                "at 0.00 s: samples as large as 500;",
            ),
        ],
    )
    def test_bad_raw_samples_are_an_error_after_the_text_before_them(
        self, cli, session, piped, data, form, reason
    ):
        piped(data)
        outcome = cli.run("listen", "-", "--pcm", *form)
        assert (outcome.code, outcome.err.count("\n")) == (3, 1)
        assert outcome.err.startswith(f"harken: <stdin>: {reason}")
        assert session.closed
        if not form and data:
            assert outcome.out.splitlines() == [*SAID[:2], "word10"]

    @pytest.mark.parametrize(("now_s", "late"), [(lambda: 0.0, False), (iter([0] + [9] * 99).__next__, True)])
    def test_real_pace_waits_for_each_block_that_is_not_late(self, cli, session, talk, now_s, late):
        slept = []
        cli.monkeypatch.setattr("harken.cli.sources.perf_counter", now_s)
        cli.monkeypatch.setattr("harken.cli.sources.sleep", slept.append)
        assert cli.run("listen", talk, "--pace", "real").code == 0
        assert slept == sorted(slept)
        assert slept[0] == pytest.approx(0.0 if late else len(session.blocks[0]) / 16_000)
        assert slept[-1] == pytest.approx(0.0 if late else 1.2)


@pytest.mark.parametrize(
    ("line", "options", "stream_options"),
    [
        ("--delay 1500 --pause-s 2 --no-adaptive", {}, {"delay": "1500", "pause_s": 2.0, "adaptive": False}),
        ("--delay 200 --best-effort --language en", {"language": "en"}, {"delay": "200", "best_effort": True}),
        ("-o said.srt", {}, {}),
        ("-o said.words.tsv", {"word_timestamps": True}, {}),  # a format that shows words
    ],
)
def test_options_reach_the_session(cli, session, talk, line, options, stream_options):
    assert cli.run("listen", talk, *line.split()).code == 0
    assert session.options == TranscribeOptions(**options)
    assert session.stream_options == StreamOptions(**stream_options)


class TestOutput:
    def test_lines_begin_with_times(self, cli, session, talk):
        first = cli.run("listen", talk, "--times").out.splitlines()[0]
        assert first == "[00:00.000 --> 00:00.500] word0 word1 word2 word3 word4"

    def test_json_has_every_event(self, cli, session, talk):
        told = [json.loads(line) for line in cli.run("listen", talk, "--json").out.splitlines()]
        assert [event["event"] for event in told[:3]] == ["speech_started", "interim", "interim"]
        times = {"audio_s": 0.2, "emitted_s": 0.256, "compute_s": 0.0}  # emitted at the end of its block
        words = [{"start": 0.1, "end": 0.2, "word": " word1", "probability": 0.9}]
        shown = {"event": "interim", "committed": "word0 word1", "tentative": " and", "words": words}
        assert told[2] == times | shown
        segments = [event["segment"]["text"] for event in told if event["event"] == "final_segment"]
        assert segments == [f" {text}" for text in SAID]
        assert (told[-1]["event"], told[-1]["reason"]) == ("speech_ended", "close")

    @pytest.mark.parametrize(
        ("lag_s", "message"),
        [
            (2.0, "harken: 2.0 s behind: longer hops\n"),
            (0.0, "harken: this machine is busy or slow; starting with longer hops\n"),
        ],
    )
    def test_work_left_out_is_said(self, cli, session, talk, lag_s, message):
        times = {"audio_s": 0, "emitted_samples": 0, "compute_s": 0}
        changed = LoadChanged(level=1, lag_s=lag_s, detail="longer hops", **times)
        cli.monkeypatch.setattr(session, "close", lambda: [changed])
        assert cli.run("listen", talk).err == message
        assert cli.run("listen", talk, "--quiet").err == ""
        told = json.loads(cli.run("listen", talk, "--json").out.splitlines()[-1])
        assert (told["event"], told["level"], told["detail"]) == ("load_changed", 1, "longer hops")

    def test_refused_milliseconds_name_the_option_to_go_on(self, cli, talk):
        outcome = cli.run("listen", talk, "--delay", "200")
        assert outcome.code == 2
        assert "--delay '200': allowed is at least " in outcome.err
        assert outcome.err.endswith("; --best-effort starts with the nearest\n")

    def test_verbose_reports_engine_and_speed(self, cli, session, talk):
        first, bound, last = cli.run("listen", talk, "--verbose").err.splitlines()
        assert first == "Recognizer('tiny.en', fixed logits)"
        assert bound == f"words are {TalkingSession.plan.bound}"
        speed = r"computed for \d\.\d\d s, \d\.\d{3} of real time"
        assert re.fullmatch(rf"talk\.wav: 00:01\.200 of audio, {speed}", last)

    def test_transcript_and_recording_are_written(self, cli, talk):
        for form in ("srt", "json", "html"):
            hears(cli.monkeypatch, TalkingSession())
            assert cli.run("listen", talk, "-o", f"said.{form}", "--record", "recording.wav").code == 0
        assert Path("said.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:00,500\nword0 word1")
        document = json.loads(Path("said.json").read_text())
        assert (document["duration"], document["language"], document["model"]) == (1.2, "en", "tiny.en")
        assert document["text"] == " ".join(SAID)
        assert 'src="recording.wav"' in Path("said.html").read_text()
        with wave.open("recording.wav") as recorded:
            assert recorded.getparams()[:4] == (1, 2, 16_000, 19_200)
        assert np.array_equal(load_audio("recording.wav"), load_audio(talk))


class TestNames:
    def test_files_can_be_read_while_they_grow(self, cli, talk, once_fed):
        def look():
            assert eventually(lambda: Path("a.wav.part").stat().st_size == 44 + 2 * len(session.samples))
            assert np.array_equal(load_audio("a.wav.part"), session.samples)
            assert eventually(lambda: Path("a.txt.part").read_text().splitlines() == SAID[:2])
            names.extend(os.listdir())

        names = []
        session = once_fed(17_600, look)
        assert cli.run("listen", talk, *KEPT).code == 0
        assert sorted(names) == ["a.txt.part", "a.wav.part", "talk.wav"]
        assert sorted(os.listdir()) == ["a.txt", "a.wav", "talk.wav"]

    @pytest.mark.parametrize(("data", "names"), [(b"", ["old.srt", "old.wav"]), (b"Dear diary,\n" * 99, [])])
    def test_session_without_sound_replaces_nothing(self, cli, session, piped, data, names):
        for name in names:
            Path(name).write_text("before")
        piped(data)
        outcome = cli.run("listen", "-", "-o", "old.srt", "--record", "old.wav")
        assert (outcome.code, outcome.err.count("\n"), "old" in outcome.err) == (3, 1, False)
        assert sorted(os.listdir()) == names
        assert [Path(name).read_text() for name in names] == ["before"] * len(names)

    @pytest.mark.parametrize(
        ("amplitude", "sound"), [(0, "silence"), (0.1, "sound (peak -20 dBFS)")], ids=["silence", "sound"]
    )
    def test_audio_in_which_nobody_speaks_is_said_at_the_end(self, cli, session, piped, amplitude, sound):
        cli.monkeypatch.setattr(session, "feed", lambda samples: [])
        samples = np.round(amplitude * 32768 * np.sin(np.arange(2 * 16_000))).astype("<i2").tobytes()
        for quiet, said in ([], f"harken: <stdin>: no speech found in 2.0 s of {sound}\n"), (["--quiet"], ""):
            piped(samples)
            outcome = cli.run("listen", "-", "--pcm", *quiet)
            assert (outcome.code, outcome.out, outcome.err) == (0, "", said)

    def test_transcript_without_words_is_whole(self, cli, session, talk):
        Path("old.txt").write_text("before")
        cli.monkeypatch.setattr(session, "feed", lambda samples: [])
        assert cli.run("listen", talk, "-o", "old.txt").code == 0
        assert Path("old.txt").read_text() == ""

    def test_failure_before_the_first_segment_replaces_no_transcript(self, cli, talk, once_fed):
        def fail():
            raise RuntimeError("unforeseen")

        Path("old.txt").write_text("before")
        once_fed(0, fail)
        assert cli.run("listen", talk, "-o", "old.txt", "--record", "a.wav").code == 70
        assert Path("old.txt").read_text() == "before"
        assert sorted(os.listdir()) == ["a.wav", "old.txt", "talk.wav"]
        assert 0 < len(load_audio("a.wav")) < 2_000

    def test_recording_of_a_killed_session_is_left_alone(self, cli, session, talk):
        Path("a.wav.part").write_text("an hour of speech")
        outcome = cli.run("listen", talk, "--record", "a.wav")
        message = "is of another session, which runs or did not end; this one writes a.wav.2.part"
        assert (outcome.code, outcome.err) == (0, f"harken: a.wav.part {message}\n")
        assert Path("a.wav.part").read_text() == "an hour of speech"
        assert len(load_audio("a.wav")) == 19_200

    def test_file_that_another_program_wrote_meanwhile_is_left_alone(self, cli, talk, once_fed):
        once_fed(17_600, lambda: Path("a.wav").write_text("theirs"))
        outcome = cli.run("listen", talk, "--record", "a.wav")
        message = "another program has written it meanwhile; this session's is a.wav.part"
        assert (outcome.code, outcome.err) == (5, f"harken: a.wav: {message}\n")
        assert Path("a.wav").read_text() == "theirs"
        assert len(load_audio("a.wav.part")) == 19_200


class TestFullDisk:
    @pytest.fixture
    def disk(self, cli):
        """A disk with room for 0.75 s of audio."""
        return SmallDisk(cli.monkeypatch, room=44 + 2 * 12_000)

    def test_recording_is_kept_and_captions_go_on(self, cli, disk, talk, once_fed):
        once_fed(16_000, lambda: eventually(lambda: disk.is_full))
        outcome = cli.run("listen", talk, "--record", "a.wav")
        assert (outcome.code, outcome.out.splitlines()) == (5, SAID)
        told, ended = outcome.err.splitlines()
        assert told.startswith(f"harken: a.wav: {FULL}; a.wav.part holds the first 00:00.")
        assert told.endswith("; listening goes on")
        with wave.open("a.wav") as recorded:
            samples = recorded.getnframes()
        held = f"a.wav holds the first 00:00.{samples / 16:.0f} of 00:01.200"
        assert ended == f"harken: a.wav: {FULL}; {held}"
        assert 11_000 <= samples <= 12_000
        assert np.array_equal(load_audio("a.wav"), load_audio(talk)[:samples])

    def test_existing_recording_is_not_replaced_by_a_cut_one(self, cli, session, disk, talk):
        Path("a.wav").write_text("before")
        outcome = cli.run("listen", talk, "--record", "a.wav")
        assert outcome.code == 5
        assert "; a.wav.part holds the first 00:00." in outcome.err
        assert Path("a.wav").read_text() == "before"
        assert 11_000 <= len(load_audio("a.wav.part")) <= 12_000

    def test_text_has_room_beside_the_audio_that_filled_the_disk(self, cli, session, disk, talk):
        cli.monkeypatch.setattr("harken.cli.kept_files._ROOM_BYTES", 64)
        disk.room = 44 + 2 * 5_120  # no space is left when the first segment ends
        outcome = cli.run("listen", talk, "--record", "a.wav", "-o", "a.txt")
        assert (outcome.code, "a.txt" in outcome.err.splitlines()[-1]) == (5, False)
        assert Path("a.txt").read_text().splitlines() == SAID
        assert 4_000 <= len(load_audio("a.wav")) <= 5_120

    def test_transcript_without_its_end_does_not_take_its_name(self, cli, session, disk, talk):
        disk.room = 900  # a segment of json
        outcome = cli.run("listen", talk, "-o", "a.json", "--quiet")
        assert (outcome.code, outcome.out.splitlines()) == (5, SAID)
        held = f"harken: a.json: {FULL}; a.json.part holds the text until 00:00.500"
        assert outcome.err.splitlines()[-1] == held
        assert sorted(os.listdir()) == ["a.json.part", "talk.wav"]
        assert SAID[0] in Path("a.json.part").read_text()

    def test_transcript_for_which_there_was_no_room_is_not_kept(self, cli, session, disk, talk):
        disk.room = 10  # of the first segment
        outcome = cli.run("listen", talk, "-o", "a.srt", "--quiet")
        assert (outcome.code, outcome.out.splitlines()) == (5, SAID)
        assert outcome.err.splitlines()[-1] == f"harken: a.srt: {FULL}; nothing was kept"
        assert os.listdir() == ["talk.wav"]

    def test_recording_is_whole_if_there_is_space_again(self, cli, disk, talk):
        def on_feed(_):
            samples = len(session.samples)
            if 15_000 < samples < 17_000:
                assert eventually(lambda: disk.is_full)
            if samples > 17_000:
                disk.room = 1 << 20
                assert eventually(lambda: Path("a.wav.part").stat().st_size == 44 + 2 * samples)

        session = hears(cli.monkeypatch, TalkingSession(on_feed))
        outcome = cli.run("listen", talk, "--record", "a.wav")
        assert outcome.code == 0
        assert "harken: a.wav: can be written again, and nothing is missing\n" in outcome.err
        assert np.array_equal(load_audio("a.wav"), load_audio(talk))


class TestLostOutput:
    """Output that fails, like that to a closed terminal."""

    @pytest.mark.parametrize("files", [KEPT, []])
    def test_listening_goes_on_for_the_files_only(self, cli, session, talk, files):
        def fail(text):
            raise OutputError("standard output: cannot be written: Input/output error")

        cli.monkeypatch.setattr("harken.cli.captions.write_stdout", fail)
        outcome = cli.run("listen", talk, *files)
        message = "harken: standard output: cannot be written: Input/output error\n"
        assert (outcome.code, outcome.err, session.closed) == (5, message, True)
        if files:
            assert Path("a.txt").read_text().splitlines() == SAID
            assert np.array_equal(load_audio("a.wav"), load_audio(talk))
        else:
            assert len(session.samples) < 9_600

    def test_messages_that_nobody_reads_do_not_end_the_session(self, cli, session, talk):
        def fail(text):
            raise OSError(errno.EIO, "Input/output error")

        cli.monkeypatch.setattr(sys, "stderr", io.StringIO())
        cli.monkeypatch.setattr(sys.stderr, "write", fail)
        assert cli.run("listen", talk, "--verbose").code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
class TestSignals:
    @pytest.mark.parametrize("number", SIGNALS)
    def test_first_signal_finishes_the_audio_and_the_files(self, cli, talk, once_fed, number):
        before = signal.getsignal(number)
        session = once_fed(9_600, partial(signal.raise_signal, number))
        outcome = cli.run("listen", talk, *KEPT)
        saved = f"at 00:00.{len(session.samples) / 16:.0f}; what was done is in a.wav, a.txt"
        assert (outcome.code, outcome.err) == (128 + number, f"harken: {SIGNALS[number]} {saved}\n")
        assert session.closed
        assert outcome.out.splitlines() == Path("a.txt").read_text().splitlines() == [SAID[0], "word5"]
        assert np.array_equal(load_audio("a.wav"), session.samples)
        assert sorted(os.listdir()) == ["a.txt", "a.wav", "talk.wav"]
        assert signal.getsignal(number) is before

    def test_second_signal_stops_at_once(self, cli, talk, once_fed):
        session = once_fed(0, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
        outcome = cli.run("listen", talk, "--record", "a.wav")
        message = "harken: interrupted; what was done is in a.wav\n"
        assert (outcome.code, outcome.out, outcome.err) == (130, "", message)
        assert not session.closed
        assert len(load_audio("a.wav")) == len(session.samples)

    @pytest.mark.parametrize("number", SIGNALS)
    def test_signal_before_any_sound_replaces_nothing(self, cli, session, talk, number):
        Path("old.srt").write_text("before")
        cli.loaders["load"] = lambda **given: signal.raise_signal(number)
        outcome = cli.run("listen", talk, "-o", "old.srt", "--record", "old.wav")
        assert (outcome.code, outcome.err) == (128 + number, f"harken: {SIGNALS[number]}\n")
        assert sorted(os.listdir()) == ["old.srt", "talk.wav"]
        assert Path("old.srt").read_text() == "before"

    @pytest.mark.parametrize("signals", [1, 2])
    def test_signals_while_files_are_completed_lose_nothing(self, cli, session, talk, signals):
        def interrupted(file):
            for _ in range(signals):
                signal.raise_signal(signal.SIGTERM)
            finish(file)

        finish = KeptFile.finish
        cli.monkeypatch.setattr(KeptFile, "finish", interrupted)
        assert cli.run("listen", talk, *KEPT).code == 143
        assert Path("a.txt").read_text().splitlines() == SAID
        assert np.array_equal(load_audio("a.wav"), load_audio(talk))

    def test_full_disk_goes_before_a_signal(self, cli, talk, once_fed):
        SmallDisk(cli.monkeypatch, room=44 + 2 * 4_000)
        once_fed(9_600, partial(signal.raise_signal, signal.SIGINT))
        outcome = cli.run("listen", talk, "--record", "a.wav")
        assert outcome.code == 5
        assert outcome.err.splitlines()[-1].startswith(f"harken: a.wav: {FULL}; a.wav holds the first 00:00.")
        assert outcome.err.endswith("; interrupted\n")

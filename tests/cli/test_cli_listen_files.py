"""The files of ``harken listen``: their names, full disks, closed terminals, and signals."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from cli_runner import eventually
from fakes.live_sessions import FakeLiveSession, hears
from fakes.small_disk import SmallDisk
from harken.audio import load_audio
from harken.cli.captions import LineRenderer
from harken.cli.exits import SIGNALS
from harken.cli.kept_files import KeptFile

SAID = ["And so my fellow Americans", "ask not what your country", "can do"]
FULL = "cannot be written: No space left on device"


@pytest.fixture
def once_fed(monkeypatch):
    """Return a function that replaces every live session by one that acts once, after a number of samples."""

    def once_fed(samples, act):
        def on_feed(fed):
            if fed >= samples and not acted:
                acted.append(fed)
                act()

        acted = []
        return hears(monkeypatch, FakeLiveSession(on_feed))

    return once_fed


class TestNames:
    def test_files_can_be_read_while_they_grow(self, cli, talk, once_fed):
        def look():
            assert eventually(lambda: Path("a.wav.part").stat().st_size == 44 + 2 * len(session.samples))
            assert np.array_equal(load_audio("a.wav.part"), session.samples)
            assert eventually(lambda: Path("a.txt.part").read_text().splitlines() == SAID[:2])
            names.extend(os.listdir())

        names = []
        session = once_fed(17_600, look)
        assert cli.run("listen", talk, "--record", "a.wav", "-o", "a.txt").code == 0
        assert sorted(names) == ["a.txt.part", "a.wav.part", "talk.wav"]
        assert sorted(os.listdir()) == ["a.txt", "a.wav", "talk.wav"]

    @pytest.mark.parametrize("data", [b"", b"Dear diary,\n" * 99])
    @pytest.mark.parametrize("names", [["old.srt", "old.wav"], []])
    def test_session_without_sound_replaces_nothing(self, cli, session, data, names):
        for name in names:
            Path(name).write_text("before")
        cli.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        outcome = cli.run("listen", "-", "-o", "old.srt", "--record", "old.wav")
        assert (outcome.code, outcome.err.count("\n"), "old" in outcome.err) == (3, 1, False)
        assert sorted(os.listdir()) == names
        assert [Path(name).read_text() for name in names] == ["before"] * len(names)

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
        disk.room = 450  # a segment of json
        outcome = cli.run("listen", talk, "-o", "a.json", "--quiet")
        assert (outcome.code, outcome.out.splitlines()) == (5, SAID)
        held = f"harken: a.json: {FULL}; a.json.part holds the text until 00:00.500"
        assert outcome.err.splitlines()[-1] == held
        assert sorted(os.listdir()) == ["a.json.part", "talk.wav"]
        assert SAID[0] in Path("a.json.part").read_text()

    def test_recording_is_whole_if_there_is_space_again(self, cli, disk, talk):
        def on_feed(samples):
            if 15_000 < samples < 17_000:
                assert eventually(lambda: disk.is_full)
            if samples > 17_000:
                disk.room = 1 << 20
                assert eventually(lambda: Path("a.wav.part").stat().st_size == 44 + 2 * samples)

        hears(cli.monkeypatch, FakeLiveSession(on_feed))
        outcome = cli.run("listen", talk, "--record", "a.wav")
        assert outcome.code == 0
        assert "harken: a.wav: can be written again, and nothing is missing\n" in outcome.err
        assert np.array_equal(load_audio("a.wav"), load_audio(talk))


class TestLostOutput:
    """Output that fails, like that to a closed terminal."""

    @pytest.mark.parametrize("files", [["--record", "a.wav", "-o", "a.txt"], []])
    def test_listening_goes_on_for_the_files_only(self, cli, session, talk, files):
        def fail(text):
            raise OSError(errno.EIO, "Input/output error")

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
        def fail(renderer, text):
            raise OSError(errno.EIO, "Input/output error")

        cli.monkeypatch.setattr(LineRenderer, "write_stderr", fail)
        assert cli.run("listen", talk, "--verbose").code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
class TestSignals:
    @pytest.mark.parametrize("number", SIGNALS)
    def test_every_signal_completes_the_files(self, cli, talk, once_fed, number):
        once_fed(9_600, lambda: os.kill(os.getpid(), number))
        assert cli.run("listen", talk, "--record", "a.wav", "-o", "a.txt").code == 128 + number
        assert sorted(os.listdir()) == ["a.txt", "a.wav", "talk.wav"]

    @pytest.mark.parametrize("number", SIGNALS)
    def test_signal_before_any_sound_replaces_nothing(self, cli, session, talk, number):
        Path("old.srt").write_text("before")
        cli.loaders["load"] = lambda **given: os.kill(os.getpid(), number)
        outcome = cli.run("listen", talk, "-o", "old.srt", "--record", "old.wav")
        assert (outcome.code, outcome.err) == (128 + number, f"harken: {SIGNALS[number]}\n")
        assert sorted(os.listdir()) == ["old.srt", "talk.wav"]
        assert Path("old.srt").read_text() == "before"

    @pytest.mark.parametrize("signals", [1, 2])
    def test_signals_while_files_are_completed_lose_nothing(self, cli, session, talk, signals):
        def interrupted(file):
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
            finish(file)

        finish = KeptFile.finish
        cli.monkeypatch.setattr(KeptFile, "finish", interrupted)
        assert cli.run("listen", talk, "-o", "a.txt", "--record", "a.wav").code == 143
        assert Path("a.txt").read_text().splitlines() == SAID
        assert np.array_equal(load_audio("a.wav"), load_audio(talk))

    def test_full_disk_goes_before_a_signal(self, cli, talk, once_fed):
        SmallDisk(cli.monkeypatch, room=44 + 2 * 4_000)
        once_fed(9_600, lambda: os.kill(os.getpid(), signal.SIGINT))
        outcome = cli.run("listen", talk, "--record", "a.wav")
        assert outcome.code == 5
        assert outcome.err.splitlines()[-1].startswith(f"harken: a.wav: {FULL}; a.wav holds the first 00:00.")
        assert outcome.err.endswith("; interrupted\n")

"""``harken listen`` over a fake session: its sources, its output and its files."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
import wave
from pathlib import Path

import click
import numpy as np
import pytest

from audio_files import tone
from fakes.live_sessions import FakeLiveSession, hears
from harken.audio import load_audio
from harken.streaming import LoadChanged
from harken.streaming.config import StreamOptions
from harken.transcribe import TranscribeOptions

SAID = ["And so my fellow Americans", "ask not what your country", "can do"]
TONE = (tone(1.2) * 32768).astype("<i2")


@pytest.fixture
def piped(monkeypatch):
    """Return a function that puts bytes on standard input."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


class TestSources:
    def test_file_is_transcribed(self, cli, session, talk):
        outcome = cli.run("listen", talk)
        assert (outcome.code, outcome.out.splitlines(), outcome.err) == (0, SAID, "")
        assert np.array_equal(session.samples, load_audio(talk))
        assert session.closed

    @pytest.mark.parametrize("arguments", [["-"], []])
    def test_container_on_standard_input_is_decoded(self, cli, session, talk, piped, arguments):
        piped(talk.read_bytes())
        assert cli.run("listen", *arguments).code == 0
        assert np.array_equal(session.samples, load_audio(talk))

    @pytest.mark.parametrize("arguments", [["-", "--pcm"], ["--pcm"]])
    def test_raw_samples_are_read(self, cli, session, piped, arguments):
        piped(TONE.tobytes())
        outcome = cli.run("listen", *arguments)
        assert (outcome.code, outcome.err) == (0, "")
        assert np.array_equal(session.samples, (TONE / 32768).astype(np.float32))
        assert max(map(len, session.blocks)) <= 800

    def test_raw_floats_are_mixed_and_resampled(self, cli, session, piped):
        left, right = tone(1.0, 48_000), np.zeros(48_000)
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
            assert outcome.out.splitlines() == [*SAID[:2], "can"]

    @pytest.mark.parametrize(("now_s", "late"), [(lambda: 0.0, False), (iter([0] + [9] * 99).__next__, True)])
    def test_real_pace_waits_for_each_block_that_is_not_late(self, cli, session, talk, now_s, late):
        slept = []
        cli.monkeypatch.setattr(
            "harken.cli.sources.RealTimeSource.__init__.__defaults__", (now_s, slept.append)
        )
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
        assert first == "[00:00.000 --> 00:00.500] And so my fellow Americans"

    def test_json_has_every_event(self, cli, session, talk):
        told = [json.loads(line) for line in cli.run("listen", talk, "--json").out.splitlines()]
        assert [event["event"] for event in told[:3]] == ["speech_started", "interim", "interim"]
        times = {"audio_s": 0.2, "emitted_s": 0.2, "compute_s": 0.0}
        assert told[2] == times | {"event": "interim", "committed": "", "tentative": " And so", "words": []}
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
        assert bound == f"words are {FakeLiveSession.plan.bound}"
        speed = r"computed for \d\.\d\d s, \d\.\d{3} of real time"
        assert re.fullmatch(rf"talk\.wav: 00:01\.200 of audio, {speed}", last)

    def test_transcript_and_recording_are_written(self, cli, talk):
        for form in ("srt", "json", "html"):
            hears(cli.monkeypatch, FakeLiveSession())
            assert cli.run("listen", talk, "-o", f"said.{form}", "--record", "recording.wav").code == 0
        assert Path("said.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:00,500\nAnd so my fellow")
        document = json.loads(Path("said.json").read_text())
        assert (document["duration"], document["language"], document["model"]) == (1.2, "en", "tiny.en")
        assert document["text"] == " ".join(SAID)
        assert 'src="recording.wav"' in Path("said.html").read_text()
        with wave.open("recording.wav") as recorded:
            assert recorded.getparams()[:4] == (1, 2, 16_000, 19_200)
        assert np.array_equal(load_audio("recording.wav"), load_audio(talk))

    def test_closed_pipe_ends_quietly_with_141(self, cli, session, talk):
        def closed(*_, **__):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        cli.monkeypatch.setattr("harken.cli.root.discard", lambda stream: None)
        cli.monkeypatch.setattr(click, "echo", closed)
        outcome = cli.run("listen", talk, "--record", "recording.wav")
        assert (outcome.code, outcome.out, outcome.err) == (141, "", "")
        assert len(load_audio("recording.wav")) >= 8_000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
class TestSignals:
    def test_first_signal_finishes_the_audio(self, cli, talk):
        def interrupt(samples):
            if samples >= 9_600 and not sent:
                sent.append(samples)
                os.kill(os.getpid(), signal.SIGINT)

        sent = []
        before = signal.getsignal(signal.SIGINT)
        session = hears(cli.monkeypatch, FakeLiveSession(interrupt))
        outcome = cli.run("listen", talk, "--record", "recording.wav", "-o", "transcript.txt")
        at = f"00:00.{len(session.samples) / 16:.0f}"
        files = "what was done is in recording.wav, transcript.txt"
        assert (outcome.code, outcome.err) == (130, f"harken: interrupted at {at}; {files}\n")
        assert session.closed
        assert outcome.out.splitlines() == Path("transcript.txt").read_text().splitlines() == [SAID[0], "ask"]
        assert np.array_equal(load_audio("recording.wav"), session.samples)
        assert signal.getsignal(signal.SIGINT) is before

    def test_second_signal_stops_at_once(self, cli, talk):
        def interrupt(samples):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        session = hears(cli.monkeypatch, FakeLiveSession(interrupt))
        outcome = cli.run("listen", talk, "--record", "recording.wav")
        message = "harken: interrupted; what was done is in recording.wav\n"
        assert (outcome.code, outcome.out, outcome.err) == (130, "", message)
        assert not session.closed
        assert len(load_audio("recording.wav")) == len(session.samples)

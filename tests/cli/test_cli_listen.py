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

from audio_files import AUDIO_FORMATS, tone
from cli_runner import CliRunner
from fakes.backends import window_text
from fakes.live_sessions import FakeLiveSession, hears
from harken.audio import load_audio
from harken.streaming import LoadChanged
from harken.streaming.config import StreamOptions
from harken.transcribe import TranscribeOptions

SAID = ["And so my fellow Americans", "ask not what your country", "can do for you And", "so my"]
TONE = (tone(1.2) * 32768).astype("<i2")


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # the command sets it with --quiet
    cli = CliRunner(capsys, monkeypatch)
    cli.use_texts(window_text(0, "unheard", 1))
    return cli


@pytest.fixture
def session(monkeypatch):
    return hears(monkeypatch, FakeLiveSession())


@pytest.fixture
def talk(cli):
    """A recording of 1.2 s in the current folder: two utterances and a half."""
    return AUDIO_FORMATS["wav s16"].write(Path("talk"), 1.2)


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Put bytes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


class TestSources:
    def test_file_is_transcribed(self, cli, session, talk):
        outcome = cli.run("listen", talk)
        assert (outcome.code, outcome.out.splitlines(), outcome.err) == (0, [*SAID[:2], "can do"], "")
        assert np.array_equal(session.samples, load_audio(talk))
        assert session.closed

    def test_container_on_standard_input_is_decoded(self, cli, session, talk):
        piped(cli.monkeypatch, talk.read_bytes())
        assert cli.run("listen", "-").code == 0
        assert np.array_equal(session.samples, load_audio(talk))

    def test_without_file_standard_input_is_read(self, cli, session, talk):
        piped(cli.monkeypatch, talk.read_bytes())
        assert cli.run("listen").code == 0
        assert np.array_equal(session.samples, load_audio(talk))

    @pytest.mark.parametrize("arguments", [["-", "--pcm"], ["--pcm"]])
    def test_raw_samples_are_read(self, cli, session, arguments):
        piped(cli.monkeypatch, TONE.tobytes())
        outcome = cli.run("listen", *arguments)
        assert (outcome.code, outcome.err) == (0, "")
        assert np.array_equal(session.samples, (TONE / 32768).astype(np.float32))
        assert max(map(len, session.blocks)) <= 800

    def test_raw_floats_are_mixed_and_resampled(self, cli, session):
        left, right = tone(1.0, 48_000), np.zeros(48_000)
        piped(cli.monkeypatch, np.stack([left, right], axis=1).astype("<f4").tobytes())
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
    def test_bad_raw_samples_are_an_error(self, cli, session, data, form, reason):
        piped(cli.monkeypatch, data)
        outcome = cli.run("listen", "-", "--pcm", *form)
        assert outcome.code == 3
        assert outcome.err.startswith(f"harken: <stdin>: {reason}")
        assert len(outcome.err.splitlines()) == 1
        assert session.closed

    def test_text_before_an_incomplete_sample_is_shown(self, cli, session):
        piped(cli.monkeypatch, TONE.tobytes()[:-1])
        assert cli.run("listen", "-", "--pcm").out.splitlines() == [*SAID[:2], "can"]

    def test_real_pace_waits_for_each_block(self, cli, session, talk):
        slept: list[float] = []
        cli.monkeypatch.setattr(
            "harken.cli.sources.RealTimeSource.__init__.__defaults__", (lambda: 0.0, slept.append)
        )
        assert cli.run("listen", talk, "--pace", "real").code == 0
        assert slept == sorted(slept)
        assert slept[0] == pytest.approx(len(session.blocks[0]) / 16_000)
        assert slept[-1] == pytest.approx(1.2)

    def test_late_blocks_are_not_delayed(self, cli, session, talk):
        slept: list[float] = []
        cli.monkeypatch.setattr(
            "harken.cli.sources.RealTimeSource.__init__.__defaults__",
            (iter([0] + [9] * 99).__next__, slept.append),
        )
        assert cli.run("listen", talk, "--pace", "real").code == 0
        assert {*slept} == {0.0}


class TestOptions:
    def test_options_reach_the_session(self, cli, session, talk):
        assert (
            cli.run(
                "listen", talk, "--delay", "1500", "--language", "en", "--pause-s", "2", "--no-adaptive"
            ).code
            == 0
        )
        assert session.options == TranscribeOptions(language="en")
        assert session.stream_options == StreamOptions(delay="1500", pause_s=2.0, adaptive=False)


class TestOutput:
    def test_lines_begin_with_times(self, cli, session, talk):
        first = cli.run("listen", talk, "--times").out.splitlines()[0]
        assert first == "[00:00.000 --> 00:00.500] And so my fellow Americans"

    def test_json_has_every_event(self, cli, session, talk):
        outcome = cli.run("listen", talk, "--json")
        told = [json.loads(line) for line in outcome.out.splitlines()]
        assert [event["event"] for event in told[:3]] == ["speech_started", "interim", "interim"]
        assert told[2] == {
            "event": "interim",
            "audio_s": 0.2,
            "emitted_s": 0.2,
            "compute_s": 0.0,
            "committed": "",
            "tentative": " And so",
            "words": [],
        }
        assert [event["segment"]["text"] for event in told if event["event"] == "final_segment"] == [
            *(f" {text}" for text in SAID[:2]), " can do",
        ]  # fmt: skip
        assert told[-1]["event"] == "speech_ended"
        assert told[-1]["reason"] == "close"

    def test_load_changes_are_reported(self, cli, session, talk):
        changed = LoadChanged(
            audio_s=0, emitted_samples=0, compute_s=0, level=1, lag_s=2.0, detail="longer hops"
        )
        cli.monkeypatch.setattr(session, "close", lambda: [changed])
        assert cli.run("listen", talk).err == "harken: 2.0 s behind: longer hops\n"
        assert cli.run("listen", talk, "--quiet").err == ""
        told = json.loads(cli.run("listen", talk, "--json").out.splitlines()[-1])
        assert (told["event"], told["level"], told["detail"]) == ("load_changed", 1, "longer hops")

    def test_work_left_out_from_the_start_is_said_in_one_line(self, cli, session, talk):
        began = LoadChanged(audio_s=0, emitted_samples=0, compute_s=0, level=1, lag_s=0.0, detail="longer hops")
        cli.monkeypatch.setattr(session, "close", lambda: [began])
        outcome = cli.run("listen", talk)
        assert (outcome.code, outcome.err) == (
            0,
            "harken: this machine is busy or slow; starting with longer hops\n",
        )
        assert cli.run("listen", talk, "--quiet").err == ""

    def test_refused_milliseconds_name_the_option_to_go_on(self, cli, talk):
        outcome = cli.run("listen", talk, "--delay", "200")
        assert outcome.code == 2
        assert "--delay '200': allowed is at least " in outcome.err
        assert outcome.err.endswith("; --best-effort starts with the nearest\n")

    def test_best_effort_is_an_option(self, cli, session, talk):
        assert cli.run("listen", talk, "--delay", "200", "--best-effort").code == 0
        assert session.stream_options == StreamOptions(delay="200", best_effort=True)

    def test_verbose_reports_engine_and_speed(self, cli, session, talk):
        first, bound, last = cli.run("listen", talk, "--verbose").err.splitlines()
        assert first == "Recognizer('tiny.en', fixed logits)"
        assert bound == f"words are {FakeLiveSession.plan.bound}"
        assert re.fullmatch(
            r"talk\.wav: 00:01\.200 of audio, computed for \d\.\d\d s, \d\.\d{3} of real time", last
        )

    def test_transcript_is_written(self, cli, session, talk):
        assert cli.run("listen", talk, "-o", "said.srt").code == 0
        assert Path("said.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:00,500\nAnd so my fellow")
        assert not session.options.word_timestamps

    def test_json_transcript_has_the_metadata(self, cli, session, talk):
        assert cli.run("listen", talk, "-o", "transcript.json", "--record", "recording.wav").code == 0
        document = json.loads(Path("transcript.json").read_text())
        assert (document["duration"], document["language"], document["model"]) == (1.2, "en", "tiny.en")
        assert document["text"] == f"{' '.join(SAID[:2])} can do"

    def test_formats_with_words_turn_on_word_timestamps(self, cli, session, talk):
        assert cli.run("listen", talk, "-o", "said.words.tsv").code == 0
        assert session.options.word_timestamps

    def test_html_page_links_to_the_recording(self, cli, session, talk):
        assert cli.run("listen", talk, "-o", "transcript.html", "--record", "recording.wav").code == 0
        assert 'src="recording.wav"' in Path("transcript.html").read_text()

    def test_recording_holds_the_audio(self, cli, session, talk):
        assert cli.run("listen", talk, "--record", "recording.wav").code == 0
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
            if samples >= 9_600 and not session.closed:
                os.kill(os.getpid(), signal.SIGINT) if len(sent) == 0 else None
                sent.append(samples)

        sent: list[int] = []
        session = hears(cli.monkeypatch, FakeLiveSession(interrupt))
        outcome = cli.run("listen", talk, "--record", "recording.wav", "-o", "transcript.txt")
        heard_s = len(session.samples) / 16_000
        assert outcome.code == 130
        assert (
            outcome.err
            == f"harken: interrupted at 00:00.{heard_s * 1000:.0f}; what was done is in recording.wav, transcript.txt\n"
        )
        assert session.closed
        assert outcome.out.splitlines() == Path("transcript.txt").read_text().splitlines() == [SAID[0], "ask"]
        assert np.array_equal(load_audio("recording.wav"), session.samples)

    def test_second_signal_stops_at_once(self, cli, talk):
        def interrupt(samples):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        session = hears(cli.monkeypatch, FakeLiveSession(interrupt))
        outcome = cli.run("listen", talk, "--record", "recording.wav")
        assert (outcome.code, outcome.out, outcome.err) == (
            130,
            "",
            "harken: interrupted; what was done is in recording.wav\n",
        )
        assert not session.closed
        assert len(load_audio("recording.wav")) == len(session.samples)

    def test_signal_handlers_are_restored(self, cli, session, talk):
        before = signal.getsignal(signal.SIGINT)
        cli.run("listen", talk)
        assert signal.getsignal(signal.SIGINT) is before

"""``harken transcribe`` over a model of known texts: its output, its files, failures and interruptions."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
import pytest

from audio_files import AUDIO_FORMATS, VIDEO_ONLY, tone
from cli_runner import CliRunner
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, window_text
from harken.cli import file_transcriber, transcript_files
from harken.cli.exits import Stop
from harken.contract import Floats, SparsePositions
from harken.errors import CheckpointNotFound, OutputError
from harken.formats import FORMATS
from harken.results import Transcript, UnwrittenSpeech

WORDS = ("one", "two", "three", "four")
COUNTING = [window_text(0, word, WINDOW_POSITIONS) for word in WORDS]
LENGTH_S = WINDOW_S * len(WORDS)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # the command sets it where no bar is shown
    cli = CliRunner(capsys, monkeypatch)
    cli.use_texts(*COUNTING)
    return cli


@pytest.fixture
def talk(cli: CliRunner) -> Path:
    """A recording of four windows in the current folder."""
    return AUDIO_FORMATS["wav s16"].write(Path("talk"), LENGTH_S)


def lines(*words: str) -> str:
    """Return the lines that the screen shows for windows."""
    spans = [f"[00:{i * WINDOW_S:06.3f} --> 00:{(i + 1) * WINDOW_S:06.3f}]" for i in range(len(words))]
    return "".join(f"{span} {word}\n" for span, word in zip(spans, words, strict=True))


class TestScreen:
    def test_without_options_transcript_is_printed_and_no_file_written(
        self, cli: CliRunner, talk: Path
    ) -> None:
        outcome = cli.run("transcribe", talk, "--language", "en")
        assert (outcome.code, outcome.out, outcome.err) == (0, lines(*WORDS), "")
        assert os.listdir() == ["talk.wav"]

    def test_several_recordings_have_headings(self, cli: CliRunner, talk: Path) -> None:
        AUDIO_FORMATS["flac"].write(Path("other"), WINDOW_S)
        outcome = cli.run("transcribe", "*.wav", "other.flac", "--language", "en")
        lines_of_other = lines("four")  # the texts of the model continue
        assert outcome.out == f"==> talk.wav <==\n{lines(*WORDS)}==> other.flac <==\n{lines_of_other}"
        assert len(cli.loaded) == 1

    def test_verbose_reports_engine_rejections_and_speed(self, cli: CliRunner, talk: Path) -> None:
        cli.use_texts(window_text(0, "hm", WINDOW_POSITIONS, gap=1.0))
        outcome = cli.run("transcribe", talk, "--verbose", "--language", "en", "--temperatures", "0,0")
        first, *rejected, last = outcome.err.splitlines()
        assert first.startswith("Recognizer('tiny.en', fixed logits) loaded in ")
        assert [line.partition(": average")[0] for line in rejected] == [
            f"talk.wav: window at 00:0{i * WINDOW_S:.3f}: rejected at temperature 0" for i in range(4)
        ]
        assert last.startswith("talk.wav: 00:01.920 in ")
        assert last.endswith("times real time, 40 tokens, windows decoded: 8")

    def test_verbose_reports_language_and_dropped_segments(self, cli: CliRunner, talk: Path) -> None:
        cli.use_texts(window_text(0, "Thanks for watching!", WINDOW_POSITIONS, gap=4.0, no_speech=0.5))
        outcome = cli.run("transcribe", talk, "--verbose", "--languages", "de", "--temperatures", "0")
        assert outcome.out == ""
        _, summary, language, *dropped, _ = outcome.err.splitlines()
        assert summary == "talk.wav: no text"
        assert language == "talk.wav: language: de, probability 1.00"
        assert len(dropped) == len(WORDS)
        assert dropped[0].startswith("talk.wav: dropped [00:00.000 --> 00:00.480] Thanks")
        assert "what is often written for silence" in dropped[0]

    def test_verbose_reports_speech_without_words(self) -> None:
        missing = UnwrittenSpeech(start_s=61.5, end_s=77.25, reason="no words")
        transcript = Transcript(segments=(), language="en", duration_s=90, model="tiny", unwritten=(missing,))
        assert [*file_transcriber._language_and_loss_lines(transcript)] == [
            "no text",
            "speech without words from 01:01.500 to 01:17.250: no words",
        ]

    def test_verbose_reports_language_changes(self, cli: CliRunner, talk: Path) -> None:
        probabilities = iter([{"de": 0.9, "fr": 0.1}] * 2 + [{"fr": 1.0, "de": 0.0}] * 2)
        cli.monkeypatch.setattr(
            "harken.transcribe.window_decoder.language_probabilities", lambda *_: [next(probabilities)]
        )
        outcome = cli.run("transcribe", talk, "--verbose", "--multilingual")
        assert "talk.wav: languages: de from 00:00.000, fr from 00:00.960\n" in outcome.err

    def test_doubt_about_the_language_is_said(self, cli: CliRunner, talk: Path) -> None:
        probabilities = {"nl": 0.4, "de": 0.35, "en": 0.25}
        cli.monkeypatch.setattr(
            "harken.transcribe.window_decoder.language_probabilities", lambda *_: [probabilities]
        )
        line = (
            "harken: talk.wav: the language may be another than nl, of probability 0.40; --language names it\n"
        )
        assert line in cli.run("transcribe", talk).err
        assert cli.run("transcribe", talk, "--quiet").err == ""
        assert cli.run("transcribe", talk, "--language", "nl").err == ""

    def test_recording_without_speech_has_no_text(self, cli: CliRunner) -> None:
        AUDIO_FORMATS["wav s16"].write(Path("rain"), samples=np.zeros(3 * 16_000))
        outcome = cli.run("transcribe", "rain.wav", "--verbose", "--vad")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err.splitlines()[1] == "rain.wav: no text"
        assert cli.run("transcribe", "rain.wav", "--vad").err == ""

    def test_sound_without_speech_is_said(self, cli: CliRunner) -> None:
        AUDIO_FORMATS["wav s16"].write(Path("rain"), samples=0.01 * np.sin(np.arange(3 * 16_000)))
        outcome = cli.run("transcribe", "rain.wav", "--vad")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err == (
            "harken: rain.wav: no speech found in 3.0 s of sound (peak -40 dBFS); --no-vad transcribes it all\n"
        )
        assert cli.run("transcribe", "rain.wav", "--vad", "--quiet").err == ""

    def test_closed_pipe_ends_quietly_with_141(self, cli: CliRunner, talk: Path) -> None:
        def closed(*_: object, **__: object) -> None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        cli.monkeypatch.setattr("harken.cli.root.discard", lambda stream: None)
        cli.monkeypatch.setattr(click, "echo", closed)
        outcome = cli.run("transcribe", talk, "--language", "en")
        assert (outcome.code, outcome.out, outcome.err) == (141, "", "")


class TestFiles:
    def test_all_formats_are_written_into_a_new_folder(self, cli: CliRunner, talk: Path) -> None:
        outcome = cli.run("transcribe", talk, "-f", "all", "-o", "out/here", "--language", "en")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
        assert sorted(os.listdir("out/here")) == sorted(f"talk.{form}" for form in FORMATS if form != "rttm")
        assert Path("out/here/talk.txt").read_text() == "one\ntwo\nthree\nfour\n"
        document = json.loads(Path("out/here/talk.json").read_text())
        assert (document["text"], document["duration"], document["model"]) == (
            "onetwothreefour", pytest.approx(LENGTH_S), "tiny.en",
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["--format", "srt,vtt"], {"talk.srt", "talk.vtt"}),
            (["-f", "srt", "-f", "lrc", "-f", "srt"], {"talk.srt", "talk.lrc"}),
            (["-o", "."], {"talk.txt"}),
            (["--output_dir", ".", "--format", "tsv"], {"talk.tsv"}),
        ],
    )
    def test_formats_and_folder_decide_the_files(
        self, cli: CliRunner, talk: Path, arguments: list[str], expected: set[str]
    ) -> None:
        assert cli.run("transcribe", talk, *arguments, "--language", "en").code == 0
        assert {*os.listdir()} == {"talk.wav"} | expected

    def test_existing_file_is_replaced(self, cli: CliRunner, talk: Path) -> None:
        Path("talk.txt").write_text("old")
        assert cli.run("transcribe", talk, "-f", "txt", "--language", "en").code == 0
        assert Path("talk.txt").read_text() == "one\ntwo\nthree\nfour\n"

    @pytest.mark.parametrize("form", [form for form in FORMATS if form != "rttm"])
    def test_standard_output_equals_the_file(self, cli: CliRunner, talk: Path, form: str) -> None:
        cli.run("transcribe", talk, "-f", form, "--language", "en")
        cli.use_texts(*COUNTING)
        outcome = cli.run("transcribe", talk, "-f", form, "-o", "-", "--language", "en")
        assert outcome.out == Path(f"talk.{form}").read_text(encoding="utf-8")

    def test_silence_gives_an_empty_transcript(self, cli: CliRunner, talk: Path) -> None:
        cli.use_texts(window_text(0, "psst", WINDOW_POSITIONS, gap=1.0, no_speech=0.9))
        outcome = cli.run("transcribe", talk, "-f", "vtt,json", "--language", "en")
        assert outcome.code == 0
        assert Path("talk.vtt").read_text() == "WEBVTT\n\n"
        assert json.loads(Path("talk.json").read_text())["segments"] == []


class TestLayout:
    """Formats that show words, which turn on word timestamps. In Chinese every character is a word."""

    @pytest.fixture(autouse=True)
    def sentences(self, cli: CliRunner) -> None:
        cli.use_texts(window_text(0, "onetwothreefour", WINDOW_POSITIONS))

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["-f", "json"], False),
            (["-f", "json", "--max-line-width", "9"], True),
            (["-f", "json", "--highlight-words"], True),
            (["-f", "json,html"], True),
            (["-f", "json,words.tsv"], True),
            (["-f", "json,html", "--no-word-timestamps"], False),
        ],
    )
    def test_formats_and_layout_decide_word_timestamps(
        self, cli: CliRunner, talk: Path, arguments: list[str], words: bool
    ) -> None:
        assert cli.run("transcribe", talk, *arguments, "--language", "en").code == 0
        segments = json.loads(Path("talk.json").read_text(encoding="utf-8"))["segments"]
        assert {bool(segment["words"]) for segment in segments} == {words}

    def test_lines_have_the_given_width(self, cli: CliRunner, talk: Path) -> None:
        arguments = ("-f", "srt", "--max-line-width", "9", "--language", "zh", "--clip-timestamps", "0,0.48")
        cli.run("transcribe", talk, *arguments)
        text = Path("talk.srt").read_text(encoding="utf-8")
        assert [line for line in text.splitlines() if line[:1].isalpha()] == ["onetwothr", "eefour"]
        cli.use_texts(window_text(0, "onetwothreefour", WINDOW_POSITIONS))
        assert cli.run("transcribe", talk, *arguments, "-o", "-").out == text

    @pytest.mark.parametrize(
        ("arguments", "source"),
        [
            (["-o", "out/here"], 'src="../../talk.wav"'),
            (["-o", "-"], 'src="talk.wav"'),
            (["-o", "out", "--embed-audio"], 'src="data:audio/'),
        ],
    )
    def test_html_page_links_to_the_recording(
        self, cli: CliRunner, talk: Path, arguments: list[str], source: str
    ) -> None:
        outcome = cli.run("transcribe", talk, "-f", "html", *arguments, "--language", "en")
        pages = outcome.out + "".join(path.read_text(encoding="utf-8") for path in Path().rglob("*.html"))
        assert source in pages


class TestTerminal:
    """The output if both streams are a terminal."""

    @pytest.fixture(autouse=True)
    def terminal(self, cli: CliRunner) -> None:
        cli.monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
        cli.monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
        cli.monkeypatch.setenv("TERM", "xterm")
        cli.monkeypatch.setenv("COLUMNS", "120")

    def test_segments_are_printed_above_the_bar(self, cli: CliRunner, talk: Path) -> None:
        cli.monkeypatch.setattr("harken.cli.terminal.SPEED_SHOWN_FROM_S", 1e-9)
        cli.monkeypatch.setattr("harken.cli.terminal.TIME_LEFT_SHOWN_FROM_S", 1e-9)
        outcome = cli.run("transcribe", talk, "-f", "txt", "--language", "en")
        assert outcome.out == lines("one")  # before the bar comes
        for shown in lines(*WORDS).splitlines()[1:]:
            assert shown in outcome.err
        assert "loading the model" in outcome.err
        assert "talk.wav" in outcome.err
        assert " 25%" in outcome.err
        assert re.search(r"00:0\d left, [\d.]+x real time", outcome.err)

    @pytest.mark.parametrize("quiet", ["--quiet", "-q"])
    def test_quiet_prints_nothing(self, cli: CliRunner, talk: Path, quiet: str) -> None:
        outcome = cli.run("transcribe", talk, "-f", "txt", quiet, "--language", "en")
        assert (outcome.out, outcome.err) == ("", "")

    def test_no_progress_prints_segments_only(self, cli: CliRunner, talk: Path) -> None:
        outcome = cli.run("transcribe", talk, "-f", "txt", "--no-progress", "--language", "en")
        assert (outcome.out, outcome.err) == (lines(*WORDS), "")

    def test_errors_are_printed_above_the_bar(self, cli: CliRunner, talk: Path) -> None:
        outcome = cli.run("transcribe", talk, "none.wav", "--language", "en")
        assert outcome.code == 1
        assert "harken: none.wav: no such file" in outcome.err


def wav_without_samples(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))


def nan_wav(path: Path) -> None:
    samples = tone(LENGTH_S)
    samples[len(samples) * 3 // 4 :] = np.nan
    AUDIO_FORMATS["wav float"].write(path, samples=samples)


def truncated_mp4(path: Path) -> None:
    AUDIO_FORMATS["m4a"].write(path, 4.0)
    path.with_suffix(".m4a").rename(path)
    path.write_bytes(path.read_bytes()[:-2000])


def unreadable(path: Path) -> None:
    if sys.platform == "win32" or os.geteuid() == 0:
        pytest.skip("whoever runs this may read everything")
    path.touch(mode=0)


# name, function that writes the file, text in the message; the exit code is 3
BAD = {
    "missing.mp3": (lambda path: None, "no such file"),
    "empty.wav": (lambda path: path.touch(), "is empty (0 bytes)"),
    "nothing.wav": (wav_without_samples, "holds no audio samples"),
    "text.mp3": (lambda path: path.write_text("Dear diary,\n" * 99), "is not a recording that FFmpeg can read"),
    "cut.mp4": (truncated_mp4, "cut short"),
    "mute.mp4": (lambda path: VIDEO_ONLY.write(path), "has no sound, only video"),
    "nan.wav": (nan_wav, "a sample is nan or infinite"),
    "folder": (lambda path: path.mkdir(), "is a directory"),
    "secret.wav": (unreadable, "cannot be read"),
}


class TestFailures:
    @pytest.mark.parametrize("name", BAD)
    def test_bad_input_is_one_line_and_code_3(self, cli: CliRunner, name: str) -> None:
        make, reason = BAD[name]
        make(Path(name))
        outcome = cli.run("transcribe", name, "-f", "txt", "-o", "out", "--language", "en")
        assert outcome.code == 3
        assert outcome.err.startswith(f"harken: {name}: ")
        assert reason in outcome.err
        assert outcome.err.count("\n") == 1

    def test_text_before_damaged_audio_is_written(self, cli: CliRunner) -> None:
        nan_wav(Path("nan.wav"))
        outcome = cli.run("transcribe", "nan.wav", "-f", "txt,json", "--language", "en")
        assert (outcome.code, outcome.out) == (3, "")
        assert outcome.err.endswith("; what was done is in nan.txt.partial, nan.json.partial\n")
        assert Path("nan.txt.partial").read_text() == "one\ntwo\nthree\n"
        assert json.loads(Path("nan.json.partial").read_text())["text"] == "onetwothree"

    def test_recording_that_breaks_off_does_not_replace_a_whole_transcript(self, cli: CliRunner) -> None:
        nan_wav(Path("nan.wav"))
        Path("nan.txt").write_text("whole")
        assert cli.run("transcribe", "nan.wav", "-f", "txt", "--language", "en").code == 3
        assert Path("nan.txt").read_text() == "whole"

    def test_unreadable_recording_leaves_no_file(self, cli: CliRunner) -> None:
        Path("text.mp3").write_text("Dear diary,")
        assert cli.run("transcribe", "text.mp3", "-f", "all", "-o", "out").code == 3
        assert os.listdir("out") == []
        assert not cli.loaded  # reported before a model is loaded

    def test_bad_file_does_not_stop_the_others(self, cli: CliRunner, talk: Path) -> None:
        Path("bad.wav").touch()
        outcome = cli.run("transcribe", "bad.wav", talk, "none.mp3", "-f", "txt", "--language", "en")
        assert outcome.code == 1
        assert outcome.err == (
            "harken: bad.wav: is empty (0 bytes)\nharken: none.mp3: no such file\n"
            "harken: 1 recording done; 2 refused: bad.wav, none.mp3\n"
        )
        assert Path("talk.txt").read_text() == "one\ntwo\nthree\nfour\n"

    def test_missing_model_stops_at_once(self, cli: CliRunner, talk: Path) -> None:
        def load(**given: object) -> None:
            raise CheckpointNotFound(f"{given['model']}: no such model")

        cli.loaders["load"] = load
        outcome = cli.run("transcribe", talk, talk.absolute(), "none.mp3", "-m", "huge")
        assert (outcome.code, outcome.err) == (4, "harken: huge: no such model\n")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    def test_full_disk_is_an_error(self, cli: CliRunner, talk: Path) -> None:
        Path("talk.srt").symlink_to("/dev/full")
        outcome = cli.run("transcribe", talk, "-f", "srt", "--language", "en")
        assert (outcome.code, outcome.err) == (
            5,
            "harken: talk.srt: cannot be written: No space left on device; what was done is in talk.srt.partial\n",
        )

    def test_full_disk_does_not_stop_the_others(self, cli: CliRunner, talk: Path) -> None:
        AUDIO_FORMATS["flac"].write(Path("other"), WINDOW_S)
        original = transcript_files.open_atomic

        @contextmanager
        def full(path: Path, **options: bool) -> Iterator[object]:
            if path.name.startswith("talk.txt"):
                raise OutputError(f"{path}: cannot be written: No space left on device")
            with original(path, **options) as write:
                yield write

        cli.monkeypatch.setattr(transcript_files, "open_atomic", full)
        outcome = cli.run("transcribe", talk, "other.flac", "-f", "txt", "--language", "en")
        assert outcome.code == 1
        assert outcome.err == (
            "harken: talk.txt: cannot be written: No space left on device\n"
            "harken: 1 recording done; 1 failed: talk.wav\n"
        )
        assert Path("other.txt").read_text() == "one\n"


class TestStopping:
    """A signal during a recording, which keeps the results so far."""

    @pytest.fixture
    def stop_at(self, cli: CliRunner) -> Callable[[int], None]:
        backend = cli.use_texts(*COUNTING)
        encode = backend.encode

        def stop_at(index: int) -> None:
            def interrupted(mel: Floats, positions: SparsePositions | None) -> object:
                if len(backend.mels) == index:
                    raise Stop(130, "interrupted")
                return encode(mel, positions)

            cli.monkeypatch.setattr(backend, "encode", interrupted)

        return stop_at

    def test_interrupted_recording_is_written_so_far(
        self, cli: CliRunner, talk: Path, stop_at: Callable[[int], None]
    ) -> None:
        stop_at(2)
        outcome = cli.run("transcribe", talk, "-f", "txt,json", "--language", "en")
        assert outcome.code == 130
        assert outcome.err == (
            "harken: talk.wav: interrupted at 00:00.960; what was done is in talk.txt.partial, talk.json.partial\n"
        )
        assert Path("talk.txt.partial").read_text() == "one\ntwo\n"
        assert json.loads(Path("talk.json.partial").read_text())["text"] == "onetwo"
        assert sorted(os.listdir()) == ["talk.json.partial", "talk.txt.partial", "talk.wav"]

    def test_interruption_does_not_replace_a_whole_transcript(
        self, cli: CliRunner, talk: Path, stop_at: Callable[[int], None]
    ) -> None:
        Path("talk.txt").write_text("whole")
        stop_at(2)
        assert cli.run("transcribe", talk, "-f", "txt", "--language", "en").code == 130
        assert Path("talk.txt").read_text() == "whole"

    def test_whole_transcript_replaces_what_was_left_of_an_interrupted_one(
        self, cli: CliRunner, talk: Path, stop_at: Callable[[int], None]
    ) -> None:
        stop_at(2)
        assert cli.run("transcribe", talk, "-f", "txt", "--language", "en", "--resume").code == 130
        assert sorted(os.listdir()) == ["talk.resume.jsonl", "talk.txt.partial", "talk.wav"]
        cli.use_texts(*COUNTING[2:])
        assert cli.run("transcribe", talk, "-f", "txt", "--language", "en", "--resume").code == 0
        assert sorted(os.listdir()) == ["talk.txt", "talk.wav"]
        assert Path("talk.txt").read_text() == "one\ntwo\nthree\nfour\n"

    def test_interrupted_standard_output_is_valid(
        self, cli: CliRunner, talk: Path, stop_at: Callable[[int], None]
    ) -> None:
        stop_at(3)
        outcome = cli.run("transcribe", talk, "-f", "json", "-o", "-", "--language", "en")
        assert (outcome.code, outcome.err) == (130, "harken: talk.wav: interrupted at 00:01.440\n")
        assert json.loads(outcome.out)["text"] == "onetwothree"

    def test_interruption_keeps_earlier_files_and_skips_later_ones(
        self, cli: CliRunner, talk: Path, stop_at: Callable[[int], None]
    ) -> None:
        for name in ("a", "b", "c"):
            AUDIO_FORMATS["wav s16"].write(Path(name), WINDOW_S)
        stop_at(1)
        outcome = cli.run("transcribe", "a.wav", "b.wav", "c.wav", "-f", "txt", "--language", "en")
        assert (outcome.code, outcome.err) == (130, "harken: interrupted\n")
        assert {*os.listdir()} == {"talk.wav", "a.wav", "b.wav", "c.wav", "a.txt"}

    def test_signal_while_files_are_written_does_not_lose_them(self, cli: CliRunner, talk: Path) -> None:
        original = transcript_files.render

        def interrupting(*given: object) -> Iterator[str]:
            signal.raise_signal(signal.SIGTERM)
            yield from original(*given)  # type: ignore[arg-type]

        cli.monkeypatch.setattr(transcript_files, "render", interrupting)
        outcome = cli.run("transcribe", talk, "-f", "txt", "--language", "en")
        assert (outcome.code, outcome.err) == (143, "harken: terminated\n")
        assert Path("talk.txt").read_text() == "one\ntwo\nthree\nfour\n"
        assert sorted(os.listdir()) == ["talk.txt", "talk.wav"]

    def test_second_signal_while_files_are_written_stops_at_once(self, cli: CliRunner, talk: Path) -> None:
        original = transcript_files.render
        calls: list[int] = []

        def interrupting(*given: object) -> Iterator[str]:
            calls.append(1)
            if len(calls) == 1:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)
            yield from original(*given)  # type: ignore[arg-type]

        cli.monkeypatch.setattr(transcript_files, "render", interrupting)
        outcome = cli.run("transcribe", talk, "-f", "txt", "--language", "en")
        assert (outcome.code, outcome.err) == (
            130,
            "harken: talk.wav: interrupted at 00:01.920; what was done is in talk.txt.partial\n",
        )
        assert sorted(os.listdir()) == ["talk.txt.partial", "talk.wav"]


class TestClips:
    """Clips behind the end of the recording."""

    def test_clips_that_all_lie_behind_the_end_are_an_error(self, cli: CliRunner, talk: Path) -> None:
        Path("talk.txt").write_text("whole")
        outcome = cli.run("transcribe", talk, "-f", "txt", "--language", "en", "--clip-timestamps", "100,200")
        assert (outcome.code, outcome.err) == (
            3,
            "harken: talk.wav: ends at 00:01.920, before the clip at 01:40.000\n",
        )
        assert Path("talk.txt").read_text() == "whole"

    def test_clip_behind_the_end_is_reported(self, cli: CliRunner, talk: Path) -> None:
        clips = ["--clip-timestamps", "0,0.48,100,200"]
        outcome = cli.run("transcribe", talk, "--language", "en", *clips)
        assert (outcome.code, outcome.out) == (0, lines("one"))
        assert outcome.err == "harken: talk.wav: ends at 00:01.920, before the clip at 01:40.000\n"
        cli.use_texts(*COUNTING)
        assert cli.run("transcribe", talk, "--language", "en", "--quiet", *clips).err == ""


class TestSkipping:
    """Recordings whose transcripts exist."""

    @pytest.mark.parametrize("flag", ["--skip-existing", "--resume"])
    def test_recordings_with_all_transcripts_are_skipped(self, cli: CliRunner, talk: Path, flag: str) -> None:
        AUDIO_FORMATS["flac"].write(Path("other"), WINDOW_S)
        AUDIO_FORMATS["flac"].write(Path("third"), WINDOW_S)
        for name in ("talk.txt", "talk.srt", "other.txt"):
            Path(name).write_text("whole")
        outcome = cli.run("transcribe", talk, "*.flac", "-f", "txt,srt", flag, "--language", "en")
        message = "harken: 2 recordings done; 1 skipped, as the transcripts exist\n"
        assert (outcome.code, outcome.err) == (0, message)
        assert Path("talk.txt").read_text() == "whole"
        assert Path("other.txt").read_text() == "one\n"
        assert Path("third.srt").exists()

    def test_resume_refuses_what_was_no_recording_until_it_changes(self, cli: CliRunner, talk: Path) -> None:
        Path("bad.wav").write_bytes(b"no recording at all")
        command = ("transcribe", talk, "bad.wav", "none.mp3", "-f", "txt", "--language", "en", "--resume")
        assert cli.run(*command).code == 1
        assert Path("bad.refused.json").exists()
        assert not Path("none.refused.json").exists()
        again = cli.run(*command)
        assert again.code == 1
        assert "bad.wav: is not a recording" in again.err
        assert "it has not changed since" in again.err
        assert again.err.endswith(
            "harken: 0 recordings done; 1 skipped, as the transcripts exist; 2 refused: bad.wav, none.mp3\n"
        )
        Path("bad.wav").write_bytes(talk.read_bytes())
        assert cli.run(*command[:3], *command[4:]).code == 0
        assert not Path("bad.refused.json").exists()

    def test_nothing_is_loaded_if_all_are_skipped(self, cli: CliRunner, talk: Path) -> None:
        Path("talk.txt").write_text("whole")
        outcome = cli.run("transcribe", talk, "-f", "txt", "--skip-existing", "--quiet")
        assert (outcome.code, outcome.err) == (0, "")
        assert not cli.loaded


def test_unforeseen_error_of_one_file_does_not_stop_the_others(cli: CliRunner, talk: Path) -> None:
    AUDIO_FORMATS["flac"].write(Path("other"), WINDOW_S)
    original = transcript_files.recording_reference

    def failing(source: str, folder: Path) -> object:
        if source == "talk.wav":
            raise ZeroDivisionError("by chance")
        return original(source, folder)

    cli.monkeypatch.setattr(transcript_files, "recording_reference", failing)
    outcome = cli.run("transcribe", talk, "other.flac", "-f", "txt", "--language", "en")
    assert outcome.code == 1
    assert outcome.err.startswith("harken: talk.wav: ZeroDivisionError: by chance: harken did not foresee this")
    assert Path("other.txt").read_text() == "four\n"  # the texts of the model continue
    assert "talk.txt" not in os.listdir()

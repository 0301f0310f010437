"""``harken transcribe`` over a model of known texts: output, files, failures, interruptions, watched folders."""

import json
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS, tone
from cli_runner import signal_at
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, window_text
from harken.cli import transcript_files
from harken.cli.exits import Stop
from harken.cli.files_job import language_and_loss_lines
from harken.errors import CheckpointNotFound
from harken.files import lock
from harken.formats import FORMATS
from harken.results import Transcript, UnwrittenSpeech
from real_models import EXAMPLE

WORDS = ("one", "two", "three", "four")
COUNTING = [window_text(0, word, WINDOW_POSITIONS) for word in WORDS]
TEXT = "one\ntwo\nthree\nfour\n"
LENGTH_S = WINDOW_S * len(WORDS)
FULL = "cannot be written: No space left on device"
LANGUAGE_PROBABILITIES = "harken.transcribe.window_decoder.language_probabilities"
WITHOUT_SPEAKERS = [form for form in FORMATS if form != "rttm"]


@pytest.fixture
def cli(cli):
    cli.use_texts(*COUNTING)
    return cli


@pytest.fixture
def talk(cli):
    """A recording of four windows in the current folder."""
    return AUDIO_FORMATS["wav s16"].write(Path("talk"), LENGTH_S)


@pytest.fixture
def transcribe(cli):
    """Return a function that runs the command on recordings in English."""
    return lambda *arguments: cli.run("transcribe", *arguments, "--language", "en")


@pytest.fixture
def stop_at(cli):
    """Return a function that has a signal come before the window of an index."""
    backend = cli.use_texts(*COUNTING)
    return lambda index: signal_at(cli.monkeypatch, backend, "encode", index + 1, signal.SIGINT)


def text_of(name):
    return Path(name).read_text(encoding="utf-8")


def lines(*words):
    """Return the lines that the screen shows for windows."""
    spans = [f"[00:{i * WINDOW_S:06.3f} --> 00:{(i + 1) * WINDOW_S:06.3f}]" for i in range(len(words))]
    return "".join(f"{span} {word}\n" for span, word in zip(spans, words, strict=True))


class TestScreen:
    def test_without_options_transcript_is_printed_and_no_file_written(self, transcribe, talk):
        outcome = transcribe(talk)
        assert (outcome.code, outcome.out, outcome.err) == (0, lines(*WORDS), "")
        assert os.listdir() == ["talk.wav"]

    def test_several_recordings_have_headings(self, cli, transcribe, talk):
        AUDIO_FORMATS["flac"].write(Path("other"), WINDOW_S)
        outcome = transcribe("*.wav", "other.flac")
        lines_of_other = lines("four")  # the texts of the model continue
        assert outcome.out == f"==> talk.wav <==\n{lines(*WORDS)}==> other.flac <==\n{lines_of_other}"
        assert len(cli.loaded) == 1

    def test_verbose_reports_engine_rejections_and_speed(self, cli, transcribe, talk):
        cli.use_texts(window_text(0, "hm", WINDOW_POSITIONS, gap=1.0))
        first, *rejected, speed, drafts = transcribe(
            talk, "--verbose", "--temperatures", "0,0", "--beam-size", "1"
        ).err.splitlines()
        assert first.startswith("Recognizer('tiny.en', fixed logits) loaded in ")
        assert [line.partition(": average")[0] for line in rejected] == [
            f"talk.wav: window at 00:0{i * WINDOW_S:.3f}: rejected at temperature 0" for i in range(4)
        ]
        assert speed.startswith("talk.wav: 00:01.920 in ")
        assert speed.endswith("times real time, 40 tokens, windows decoded: 8")
        assert drafts.startswith("talk.wav: drafted tokens accepted: ")  # those of the rejected attempts

    def test_verbose_reports_one_speed_of_recordings_that_are_decoded_together(self, cli, transcribe, talk):
        AUDIO_FORMATS["flac"].write(Path("other"), WINDOW_S)
        _, speed = transcribe(talk, "other.flac", "--verbose", "--batch-size", "2").err.splitlines()
        assert speed.startswith("00:02.400 in ")

    def test_verbose_reports_language_and_dropped_segments(self, cli, talk):
        cli.use_texts(window_text(0, "Thanks for watching!", WINDOW_POSITIONS, gap=4.0, no_speech=0.5))
        outcome = cli.run(
            "transcribe", talk, "--verbose", "--languages", "de", "--temperatures", "0", "--beam-size", "1"
        )
        assert outcome.out == ""
        _, summary, language, *dropped, _ = outcome.err.splitlines()
        assert (summary, language) == ("talk.wav: no text", "talk.wav: language: de, probability 1.00")
        assert len(dropped) == len(WORDS)
        assert dropped[0].startswith("talk.wav: dropped [00:00.000 --> 00:00.480] Thanks")
        assert "what is often written for silence" in dropped[0]

    def test_verbose_reports_speech_without_words(self):
        missing = UnwrittenSpeech(start_s=61.5, end_s=77.25, reason="no words")
        transcript = Transcript(segments=(), language="en", duration_s=90, model="tiny", unwritten=(missing,))
        assert [*language_and_loss_lines(transcript)] == [
            "no text",
            "speech without words from 01:01.500 to 01:17.250: no words",
        ]

    def test_verbose_reports_language_changes(self, cli, talk):
        probabilities = iter([{"de": 0.9, "fr": 0.1}] * 2 + [{"fr": 1.0, "de": 0.0}] * 2)
        cli.monkeypatch.setattr(LANGUAGE_PROBABILITIES, lambda *_: [next(probabilities)])
        outcome = cli.run("transcribe", talk, "--verbose", "--multilingual")
        assert "talk.wav: languages: de from 00:00.000, fr from 00:00.960\n" in outcome.err

    def test_doubt_about_the_language_is_said(self, cli, talk):
        cli.monkeypatch.setattr(LANGUAGE_PROBABILITIES, lambda *_: [{"nl": 0.4, "de": 0.35, "en": 0.25}])
        doubt = "the language may be another than nl, of probability 0.40; --language names it"
        assert f"harken: talk.wav: {doubt}\n" in cli.run("transcribe", talk).err
        for certain in (["--quiet"], ["--language", "nl"]):
            assert cli.run("transcribe", talk, *certain).err == ""

    @pytest.mark.parametrize(("amplitude", "said"), [(0, False), (0.01, True)], ids=["silence", "sound"])
    def test_recording_without_speech_has_no_text_and_sound_in_it_is_said(self, cli, amplitude, said):
        AUDIO_FORMATS["wav s16"].write(Path("rain"), samples=amplitude * np.sin(np.arange(3 * 16_000)))
        outcome = cli.run("transcribe", "rain.wav", "--vad")
        message = "no speech found in 3.0 s of sound (peak -40 dBFS); --no-vad transcribes it all"
        assert (outcome.code, outcome.out, outcome.err) == (0, "", f"harken: rain.wav: {message}\n" * said)
        assert cli.run("decode", "rain.wav", "--vad") == outcome
        assert "rain.wav: no text" in cli.run("transcribe", "rain.wav", "--vad", "--verbose").err
        assert cli.run("transcribe", "rain.wav", "--vad", "--quiet").err == ""

    def test_speech_without_text_is_said(self, cli):
        cli.use_texts(window_text(0, "Dogs", WINDOW_POSITIONS, gap=0.1, no_speech=0.9))
        outcome = cli.run("transcribe", EXAMPLE, "--vad", "--language", "de")
        message = f"harken: {EXAMPLE}: no text for the speech that was found; --verbose says why\n"
        assert (outcome.code, outcome.out, outcome.err) == (0, "", message)

    def test_check_passes_subtitles_without_speech_and_goes_on_after_what_are_none(self, cli):
        AUDIO_FORMATS["wav s16"].write(Path("rain"), samples=np.zeros(3 * 16_000))
        cli.run("transcribe", "rain.wav", "--vad", "-f", "srt,vtt")
        Path("titled.vtt").write_text("WEBVTT - rain\nKind: captions\n")
        outcome = cli.run("check", "none.srt", "rain.wav", "rain.srt", "rain.vtt", "titled.vtt")
        passed = "".join(
            f"{name}: 0 of 0 cues with a broken rule\n" for name in ("rain.srt", "rain.vtt", "titled.vtt")
        )
        assert (outcome.code, outcome.out) == (1, passed)
        assert [line.split(":")[1] for line in outcome.err.splitlines()] == [" none.srt", " rain.wav"]

    def test_clips_behind_the_end_of_the_recording_are_said(self, transcribe, talk):
        message = "harken: talk.wav: ends at 00:01.920, before the clip at 01:40.000\n"
        Path("talk.txt").write_text("whole")
        outcome = transcribe(talk, "-f", "txt", "--clip-timestamps", "100,200")
        assert (outcome.code, outcome.err, text_of("talk.txt")) == (3, message, "whole")
        outcome = transcribe(talk, "--clip-timestamps", "0,0.48,100,200")
        assert (outcome.code, outcome.out, outcome.err) == (0, lines("one"), message)
        assert transcribe(talk, "--quiet", "--clip-timestamps", "0,0.48,100,200").err == ""


class TestFiles:
    def test_all_formats_are_written_into_a_new_folder_and_to_standard_output(self, cli, transcribe, talk):
        outcome = transcribe(talk, "-f", "all", "-o", "out/here")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
        assert {*os.listdir("out/here")} == {f"talk.{form}" for form in WITHOUT_SPEAKERS}
        assert text_of("out/here/talk.txt") == TEXT
        document = json.loads(text_of("out/here/talk.json"))
        assert (document["text"], document["model"]) == ("onetwothreefour", "tiny.en")
        assert document["duration"] == pytest.approx(LENGTH_S)
        for form in ("txt", "JSON", "html"):
            transcribe(talk, "-f", form, "-o", ".")
            assert transcribe(talk, "-f", form, "-o", "-").out == text_of(f"talk.{form.lower()}")
        assert transcribe(talk, "-o", "-").out == text_of("talk.txt")

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("-f srt -f lrc,vtt -f srt", {"talk.srt", "talk.lrc", "talk.vtt"}),
            ("-o .", {"talk.txt"}),
            ("--output_dir . --format tsv", {"talk.tsv"}),
        ],
    )
    def test_formats_and_folder_decide_the_files_which_are_replaced(self, transcribe, talk, line, expected):
        Path(min(expected)).write_text("old")
        assert transcribe(talk, *line.split()).code == 0
        assert {*os.listdir()} == {"talk.wav"} | expected
        assert text_of(min(expected)) != "old"


class TestLayout:
    """Formats that show words, which turn on word timestamps. In Chinese every character is a word."""

    @pytest.fixture(autouse=True)
    def sentences(self, cli):
        cli.use_texts(window_text(0, "onetwothreefour", WINDOW_POSITIONS))

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("-f json", False),
            ("-f json --max-line-width 9", True),
            ("-f json --highlight-words", True),
            ("-f json,html", True),
            ("-f json,words.tsv", True),
            ("-f json,html --no-word-timestamps", False),
        ],
    )
    def test_formats_and_layout_decide_word_timestamps(self, transcribe, talk, line, words):
        assert transcribe(talk, *line.split()).code == 0
        assert {"words" in segment for segment in json.loads(text_of("talk.json"))["segments"]} == {words}

    def test_lines_have_the_given_width(self, cli, talk):
        options = ["-f", "srt", "--max-line-width", "9", "--language", "zh", "--clip-timestamps", "0,0.48"]
        cli.run("transcribe", talk, *options)
        assert re.findall(r"^[a-z]+$", text_of("talk.srt"), re.MULTILINE) == ["onetwot", "hreefour"]

    @pytest.mark.parametrize(
        ("line", "source"),
        [
            ("-o out/here", 'src="../../talk.wav"'),
            ("-o -", 'src="talk.wav"'),
            ("-o out --embed-audio", 'src="data:audio/'),
        ],
    )
    def test_html_page_links_to_the_recording(self, transcribe, talk, line, source):
        outcome = transcribe(talk, "-f", "html", *line.split())
        assert source in outcome.out + "".join(map(text_of, Path().rglob("*.html")))


class TestTerminal:
    """The output if both streams are a terminal."""

    @pytest.fixture(autouse=True)
    def terminal(self, cli):
        for stream in (sys.stdout, sys.stderr):
            cli.monkeypatch.setattr(type(stream), "isatty", lambda self: True, raising=False)
        cli.monkeypatch.setenv("TERM", "xterm")
        cli.monkeypatch.setenv("COLUMNS", "120")

    def test_segments_and_errors_are_printed_above_the_bar(self, cli, transcribe, talk):
        cli.monkeypatch.setattr("harken.cli.terminal.SPEED_SHOWN_FROM_S", 1e-9)
        cli.monkeypatch.setattr("harken.cli.terminal.TIME_LEFT_SHOWN_FROM_S", 1e-9)
        outcome = transcribe(talk, "none.wav", "-f", "txt")
        assert (outcome.code, outcome.out) == (1, f"==> talk.wav <==\n{lines(*WORDS)}")
        said = ("loading the model", "talk.wav", " 25%", "harken: none.wav: no such file")
        assert all(shown in outcome.err for shown in said)
        assert re.search(r"00:0\d left, [\d.]+x real time", outcome.err)

    @pytest.mark.parametrize(("quiet", "shown"), [("-q", ()), ("--no-progress", WORDS)])
    def test_without_progress_there_is_no_bar(self, transcribe, talk, quiet, shown):
        outcome = transcribe(talk, "-f", "txt", quiet)
        assert (outcome.out, outcome.err) == (lines(*shown), "")


class TestFailures:
    """The messages of recordings that cannot be read are in tests/audio/test_audio_errors.py."""

    def test_text_before_damaged_audio_is_written_beside_a_whole_transcript(self, transcribe):
        samples = tone(LENGTH_S)
        samples[len(samples) * 3 // 4 :] = np.nan
        AUDIO_FORMATS["wav float"].write(Path("nan"), samples=samples)
        Path("nan.txt").write_text("whole")
        outcome = transcribe("nan.wav", "-f", "txt,json")
        assert (outcome.code, outcome.out) == (3, "")
        assert outcome.err.endswith("; what was done is in nan.txt.partial, nan.json.partial\n")
        assert text_of("nan.txt.partial") == "one\ntwo\nthree\n"
        assert json.loads(text_of("nan.json.partial"))["text"] == "onetwothree"
        assert text_of("nan.txt") == "whole"

    def test_missing_model_stops_at_once(self, cli, talk):
        def load(**given):
            raise CheckpointNotFound(f"{given['model']}: no such model")

        cli.loaders["load"] = load
        outcome = cli.run("transcribe", talk, talk.absolute(), "none.mp3", "-m", "huge")
        assert (outcome.code, outcome.err) == (4, "harken: huge: no such model\n")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    def test_format_for_which_the_disk_is_full_does_not_take_the_others(self, transcribe, talk):
        for name in ("talk.srt", "talk.srt.partial", "talk.vtt"):
            Path(name).symlink_to("/dev/full")
        outcome = transcribe(talk, "-f", "txt,srt,vtt,json", "--resume")
        done = "what was done is in talk.txt, talk.json, talk.vtt.partial"
        message = f"harken: talk.srt: {FULL}; talk.vtt: {FULL}; {done}\n"
        assert (outcome.code, outcome.err) == (5, message)
        assert (text_of("talk.txt"), json.loads(text_of("talk.json"))["text"]) == (TEXT, "onetwothreefour")
        assert Path("talk.resume.jsonl").exists()

    def test_recordings_that_fail_do_not_stop_the_others(self, cli, transcribe, talk):
        backend = cli.use_texts(*COUNTING)
        encode, errors = backend.encode, [ZeroDivisionError("by chance")]

        def failing_once(mel, *, padded):
            if errors:
                raise errors.pop()
            return encode(mel, padded=padded)

        cli.monkeypatch.setattr(backend, "encode", failing_once)
        for name in ("odd", "other"):
            AUDIO_FORMATS["flac"].write(Path(name), WINDOW_S)
        Path("talk.txt").mkdir()
        outcome = transcribe(talk, "odd.flac", "other.flac", "-f", "txt")
        unwritable, unforeseen, summary = outcome.err.splitlines()
        assert outcome.code == 1
        assert unwritable.startswith("harken: talk.txt: cannot be written: ")
        assert unforeseen.startswith("harken: odd.flac: ZeroDivisionError: by chance: harken did not")
        assert summary == "harken: 1 recording done; 2 failed: talk.wav, odd.flac"
        assert text_of("other.txt") == "one\n"
        assert not Path("odd.txt").exists()


class TestStopping:
    """A signal during a recording, which keeps the results so far."""

    def test_interrupted_recording_is_written_so_far_beside_a_whole_transcript(self, transcribe, talk, stop_at):
        Path("talk.txt").write_text("whole")
        stop_at(2)
        outcome = transcribe(talk, "-f", "txt,json")
        done = "what was done is in talk.txt.partial, talk.json.partial"
        assert (outcome.code, outcome.err) == (130, f"harken: talk.wav: interrupted at 00:00.960; {done}\n")
        assert text_of("talk.txt.partial") == "one\ntwo\n"
        assert json.loads(text_of("talk.json.partial"))["text"] == "onetwo"
        assert sorted(os.listdir()) == ["talk.json.partial", "talk.txt", "talk.txt.partial", "talk.wav"]
        assert text_of("talk.txt") == "whole"

    def test_resumed_transcript_replaces_what_was_left(self, cli, transcribe, talk, stop_at):
        stop_at(2)
        assert transcribe(talk, "-f", "txt", "--resume").code == 130
        assert sorted(os.listdir()) == ["talk.resume.jsonl", "talk.txt.partial", "talk.wav"]
        cli.use_texts(*COUNTING[2:])
        assert transcribe(talk, "-f", "txt", "--resume").code == 0
        assert sorted(os.listdir()) == ["talk.txt", "talk.wav"]
        assert text_of("talk.txt") == TEXT

    def test_interrupted_standard_output_is_valid(self, transcribe, talk, stop_at):
        stop_at(3)
        outcome = transcribe(talk, "-f", "json", "-o", "-")
        assert (outcome.code, outcome.err) == (130, "harken: talk.wav: interrupted at 00:01.440\n")
        assert json.loads(outcome.out)["text"] == "onetwothree"

    def test_interruption_keeps_earlier_files_and_skips_later_ones(self, transcribe, stop_at):
        for name in ("a", "b", "c"):
            AUDIO_FORMATS["wav s16"].write(Path(name), WINDOW_S)
        stop_at(1)
        outcome = transcribe("a.wav", "b.wav", "c.wav", "-f", "txt")
        assert (outcome.code, outcome.err) == (130, "harken: interrupted\n")
        assert {*os.listdir()} == {"a.wav", "b.wav", "c.wav", "a.txt"}

    @pytest.mark.parametrize(
        ("numbers", "message", "name"),
        [
            ([signal.SIGTERM], "terminated", "talk.txt"),
            (
                [signal.SIGTERM, signal.SIGINT],
                "talk.wav: interrupted at 00:01.920; what was done is in talk.txt.partial",
                "talk.txt.partial",
            ),
        ],
    )
    def test_first_signal_waits_for_a_file_and_the_second_does_not(
        self, cli, transcribe, talk, numbers, message, name
    ):
        render, signals = transcript_files.render, iter(numbers)

        def interrupting(*given):
            for number in signals:
                signal.raise_signal(number)
            yield from render(*given)

        cli.monkeypatch.setattr(transcript_files, "render", interrupting)
        outcome = transcribe(talk, "-f", "txt")
        assert (outcome.code, outcome.err) == (128 + numbers[-1], f"harken: {message}\n")
        assert sorted(os.listdir()) == sorted([name, "talk.wav"])
        assert text_of(name) == TEXT


class TestSkipping:
    """Recordings whose transcripts exist."""

    @pytest.mark.parametrize("flag", ["--skip-existing", "--resume"])
    def test_recordings_with_all_transcripts_are_skipped(self, cli, transcribe, talk, flag):
        for name in ("talk.txt", "talk.srt", "other.txt"):
            Path(name).write_text("whole")
        outcome = transcribe(talk, "-f", "txt,srt", flag, "--quiet")
        assert (outcome.code, outcome.err, cli.loaded) == (0, "", [])
        for name in ("other", "third"):
            AUDIO_FORMATS["flac"].write(Path(name), WINDOW_S)
        outcome = transcribe(talk, "*.flac", "-f", "txt,srt", flag)
        message = "harken: 2 recordings done; 1 skipped, as the transcripts exist\n"
        assert (outcome.code, outcome.err) == (0, message)
        assert (text_of("talk.txt"), text_of("other.txt")) == ("whole", "one\n")
        assert Path("third.srt").exists()

    def test_resume_refuses_what_was_no_recording_until_it_changes(self, transcribe, talk):
        Path("bad.wav").write_bytes(b"no recording at all")
        options = ("-f", "txt", "--resume")
        assert transcribe(talk, "bad.wav", "none.mp3", *options).code == 1
        assert Path("bad.refused.json").exists()
        assert not Path("none.refused.json").exists()
        again = transcribe(talk, "bad.wav", "none.mp3", *options)
        assert again.code == 1
        assert "bad.wav: is not a recording" in again.err
        assert "it has not changed since" in again.err
        assert again.err.endswith(
            "harken: 0 recordings done; 1 skipped, as the transcripts exist; 2 refused: bad.wav, none.mp3\n"
        )
        Path("bad.wav").write_bytes(talk.read_bytes())
        assert transcribe(talk, "bad.wav", *options).code == 0
        assert not Path("bad.refused.json").exists()

    def test_resume_tries_a_recording_again_that_grew_while_it_was_transcribed(self, cli, transcribe, talk):
        whole, backend = talk.read_bytes(), cli.use_texts(*COUNTING)
        talk.write_bytes(whole[: len(whole) // 2])
        encode = backend.encode

        def encode_while_it_grows(*arguments, **options):
            talk.write_bytes(whole)
            return encode(*arguments, **options)

        cli.monkeypatch.setattr(backend, "encode", encode_while_it_grows)
        assert "is cut short" in transcribe(talk, "-f", "txt", "--resume").err
        assert transcribe(talk, "-f", "txt", "--resume").code == 0

    def test_damaged_json_is_no_refusal_and_no_draft(self, transcribe, talk):
        nested = Path("talk.refused.json")
        nested.write_text("[" * 100_000)
        refused = transcribe(talk, "-f", "txt", "--draft", nested)
        assert (refused.code, "is no text in UTF-8, or no JSON" in refused.err) == (2, True)
        assert transcribe(talk, "-f", "txt", "--resume").code == 0
        assert text_of("talk.txt").startswith("one\n")


DONE = "harken: 1 recording done\n"
WATCH = ("transcribe", "--language", "en", "--watch")


def recording(n_windows):
    return AUDIO_FORMATS["wav s16"].write(Path("made"), n_windows * WINDOW_S).read_bytes()


def put(name, content):
    return partial(Path("in", name).write_bytes, content)


def watched_texts():
    return {path.name: path.read_text() for path in sorted(Path("in").glob("*.txt"))}


class TestWatching:
    """``--watch``: what is put into a folder is transcribed once, whatever happens; a sleep is a step."""

    @pytest.fixture
    def watch(self, cli):
        """Return a function that watches the folder ``in``, with steps between two looks, and a signal behind them."""
        cli.use_texts(window_text(0, "one", WINDOW_POSITIONS))
        Path("in").mkdir()

        def watch(*steps, names=("in",), options=()):
            def sleep(seconds):
                if not waiting:
                    raise Stop(143, "terminated")
                waiting.pop(0)()

            waiting = [*steps, bool, bool]
            cli.monkeypatch.setattr("harken.cli.transcribe.sleep", sleep)
            outcome = cli.run(*WATCH, *names, *options)
            assert outcome.code == 143
            before, begun, rest = outcome.err.partition(f"harken: watching {', '.join(names)}\n")
            told, _, ended = rest.rpartition("harken: ")
            assert (bool(begun), ended) == (True, "terminated\n")
            return before + told

        return watch

    def test_a_folder_that_cannot_be_read_is_refused(self, cli):
        Path("in").mkdir()
        cli.monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
        cli.monkeypatch.setattr("harken.cli.transcribe.sleep", lambda _: pytest.fail("it is watched"))
        outcome = cli.run(*WATCH, "in")
        assert (outcome.code, outcome.err) == (3, "harken: in: cannot be read: Permission denied\n")

    def test_recordings_are_done_once_when_they_are_whole_and_again_when_they_change(self, watch):
        one, two = recording(1), recording(2)
        put("there.wav", one)()
        put("notes.md", b"no recording by its name")()
        put(".hidden.wav", one)()
        # Two looks see it grow, and one is needed to see that it does not.
        growing = [put("grows.wav", two[:900]), put("grows.wav", two[:9000]), put("grows.wav", two), bool]
        assert watch(*growing, put("empty.wav", b""), put("there.wav", two)) == DONE * 3
        assert watched_texts() == {"grows.txt": "one\none\n", "there.txt": "one\none\n"}
        assert watch() == ""  # the next process finds the transcripts
        Path("in/there.txt").unlink()
        assert watch() == DONE

    def test_verbose_reports_the_engine_once(self, watch):
        put("there.wav", recording(1))()
        told = watch(bool, bool, put("comes.wav", recording(1)), options=("--verbose",))
        assert (told.count(DONE), told.count(" loaded in ")) == (2, 1)

    def test_one_that_fails_is_reported_once_until_it_changes(self, watch):
        put("bad.wav", b"no recording at all")()
        assert watch(put("good.wav", recording(1))).count("bad.wav: is not a recording") == 1
        assert watch() == ""  # nor by the next process
        assert watch(put("bad.wav", recording(1))) == DONE
        assert watched_texts() == {"bad.txt": "one\n", "good.txt": "one\n"}
        assert not [*Path("in").glob("*.json")]

    @pytest.mark.skipif(sys.platform == "win32", reason="there is no such lock")
    def test_one_that_failed_for_a_reason_that_passes_is_tried_again_after_longer_waits(self, watch):
        put("talk.wav", recording(1))()
        with open("in/talk.resume.jsonl", "a+b") as others:
            assert lock(others, where_unsupported=True)
            told = watch(*[bool] * 11, others.close, *[bool] * 16)
        assert told.count("another process transcribes this recording") == 3
        assert told.endswith(DONE)
        assert watched_texts() == {"talk.txt": "one\n"}

    def test_one_that_was_cut_short_goes_on(self, cli, watch, stop_at):
        put("talk.wav", recording(3))()
        stop_at(2)
        cli.monkeypatch.setattr("harken.cli.transcribe.sleep", bool)
        assert cli.run(*WATCH, "in").code == 130
        assert watched_texts() == {}
        cli.use_texts(*COUNTING[2:])
        assert watch() == DONE
        assert watched_texts() == {"talk.txt": "one\ntwo\nthree\n"}

    def test_two_recordings_of_one_transcript_are_reported_and_the_first_is_done(self, watch):
        put("talk.wav", recording(1))()
        AUDIO_FORMATS["flac"].write(Path("in/talk"), WINDOW_S)
        both = f"{Path('in/talk.flac')} and {Path('in/talk.wav')} would both be written to in/talk.txt"
        assert watch(names=("in/*",), options=("-f", "txt,srt")) == f"harken: {both}\n{DONE}"

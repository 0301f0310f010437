"""Full disks: a cache, outputs and recordings on disks of a few megabytes, and standard streams that take nothing.

Real disks of limited size are mounted in memory, which takes root on Linux. Elsewhere on POSIX a limit of the size of
each file stands in for them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import Outcome
from processes import ended, error_faults, run, speech, started
from real_models import CACHE, EXAMPLE, model_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform == "win32", reason="Windows has neither such mounts nor limits of file sizes"
    ),
]
TEXT = "ask what you can do for your country"
FULL = Path("/dev/full")
needs_dev_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
attack = pytest.mark.attack


@pytest.fixture(scope="module")
def mounts() -> None:
    """Skip where no disk can be mounted."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("mounting disks of limited size takes root on Linux")
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this container cannot mount a disk")


needs_mounts = pytest.mark.usefixtures("mounts")


@contextmanager
def disk(folder: Path, megabytes: float) -> Iterator[Path]:
    """Mount a disk of a size."""
    folder.mkdir()
    size = f"size={round(megabytes * 1024)}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "harken-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def limited(size: int, arguments: list[object], folder: Path, cache: Path) -> Outcome:
    """Run harken where no file can become larger than a size; the write fails as on a full disk."""
    import resource

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return run(arguments, folder, cache, preexec_fn=limit)


def is_right_or_refused(outcome: Outcome) -> bool:
    """Return whether a process wrote the right text, or said why not with code 5."""
    assert not error_faults(outcome)
    return (outcome.code == 0 and TEXT in " ".join(outcome.out.split())) or outcome.code == 5


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A short recording in the current folder of the command, which has a cache with all graphs."""
    model_path("tiny.en")
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(7.5, 3.5))


@needs_mounts
@attack
@pytest.mark.parametrize("megabytes", [5, 40, 90])
def test_text_is_right_with_the_cache_on_a_full_disk(tmp_path: Path, megabytes: int) -> None:
    with disk(tmp_path / "cache", megabytes) as cache:
        for _ in range(2):
            assert is_right_or_refused(run(["transcribe", EXAMPLE], tmp_path, cache))
        assert not [path for path in cache.rglob("*") if path.name.startswith(".")]


def test_text_is_right_where_the_files_of_the_cache_cannot_grow(tmp_path: Path) -> None:
    model_path("tiny.en")
    assert is_right_or_refused(limited(20 << 20, ["transcribe", EXAMPLE], tmp_path, tmp_path / "cache"))


APPENDED = {"talk.resume.jsonl", "h.jsonl"}
"""Files that grow line by line, and may be there with the lines that had room."""


@needs_mounts
@attack
@pytest.mark.parametrize(
    "line",
    [
        "transcribe talk.wav -f srt,json,html -o out",
        "transcribe --resume talk.wav -f srt,vtt -o out",
        "transcribe talk.wav -f html --embed-audio -o out",
        "eval manifest.jsonl --json out/talk.json",
        "eval manifest.jsonl --hypotheses out/h.jsonl",
        "bench talk.wav --repeat 1 --json out/talk.json",
        "plot talk.wav -o out/talk.html",
    ],
)
def test_output_on_a_full_disk_is_refused_and_existing_files_stay(
    tmp_path: Path, talk: Path, line: str
) -> None:
    (tmp_path / "manifest.jsonl").write_text('{"audio": "talk.wav", "text": "ask what you can do"}\n')
    with disk(tmp_path / "out", 1) as out:
        existing = {name: f"existing {name}".encode() for name in ("talk.srt", "talk.json", "talk.html")}
        for name, content in existing.items():
            (out / name).write_bytes(content)
        fill(out)
        outcome = run(line.split(), tmp_path, CACHE)
        assert (outcome.code, error_faults(outcome)) == (5, [])
        assert {path.name for path in out.iterdir()} - {"filling"} - APPENDED == {*existing}
        assert {name: (out / name).read_bytes() for name in existing} == existing


def test_output_that_cannot_grow_is_refused_and_the_existing_file_stays(tmp_path: Path, talk: Path) -> None:
    (tmp_path / "talk.html").write_text("existing")
    outcome = limited(50_000, ["transcribe", "talk.wav", "-f", "html", "--embed-audio"], tmp_path, CACHE)
    assert (outcome.code, error_faults(outcome)) == (5, [])
    assert {path.name for path in tmp_path.iterdir()} == {"talk.wav", "talk.html"}
    assert (tmp_path / "talk.html").read_text() == "existing"


@needs_dev_full
@pytest.mark.parametrize(
    "line",
    [
        "transcribe talk.wav",
        "--help",
        pytest.param("models", marks=attack),
        pytest.param("transcribe talk.wav -f json -o -", marks=attack),
        pytest.param("decode talk.wav", marks=attack),
        pytest.param("listen talk.wav -q", marks=attack),
        pytest.param("doctor", marks=attack),
    ],
)
def test_standard_output_that_takes_nothing_is_an_error_of_writing(
    tmp_path: Path, talk: Path, line: str
) -> None:
    with FULL.open("wb") as full, started(line.split(), tmp_path, CACHE, stdout=full) as process:
        outcome = ended(process)
    assert (outcome.code, error_faults(outcome)) == (5, [])
    assert outcome.err.endswith("harken: standard output: cannot be written: No space left on device\n")


@needs_dev_full
def test_standard_error_that_takes_nothing_does_not_lose_the_text(tmp_path: Path, talk: Path) -> None:
    with FULL.open("wb") as full, started(["transcribe", "-v", talk], tmp_path, CACHE, stderr=full) as process:
        outcome = ended(process)
    assert outcome.code == 0
    assert TEXT in " ".join(outcome.out.split())


@needs_mounts
@attack
def test_what_was_recorded_stays_when_the_disk_fills_up(tmp_path: Path) -> None:
    """1 MB holds half a minute of sound."""
    model_path("tiny.en")
    sound = np.tile((speech(0, 11) * 32767).astype("<i2"), 4).tobytes()
    with disk(tmp_path / "out", 1) as out:
        line = "listen - --pcm -q --delay high --record out/x.wav -o out/x.srt"
        outcome = run(line.split(), tmp_path, CACHE, stdin=sound)
        assert (outcome.code, error_faults(outcome)) == (5, [])
        with wave.open(str(out / "x.wav")) as recorded:
            content = recorded.readframes(recorded.getnframes())
        assert len(content) > 750_000
        assert content == sound[: len(content)]
        assert {path.name for path in out.iterdir()} <= {"x.wav", "x.srt", "x.srt.part"}


def test_what_was_recorded_stays_when_the_file_cannot_grow(tmp_path: Path, talk: Path) -> None:
    outcome = limited(60_000, ["listen", "talk.wav", "-q", "--record", "x.wav"], tmp_path, CACHE)
    assert (outcome.code, error_faults(outcome)) == (5, [])
    with wave.open(str(tmp_path / "x.wav")) as recorded:
        assert recorded.getnframes() * 2 > 60_000 - 44 - 1_600  # but for one block of 50 ms
    assert {path.name for path in tmp_path.iterdir()} == {"talk.wav", "x.wav"}

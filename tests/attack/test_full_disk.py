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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from processes import HARKEN, Ended, environment, error_faults, run, speech

from audio_files import AUDIO_FORMATS
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


def fill(folder: Path, left: int = 0) -> None:
    """Fill a disk, except some bytes."""
    with (folder / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - left))


def is_right_or_refused(ended: Ended) -> bool:
    """Return whether a process wrote the right text, or said why not with code 5."""
    assert not error_faults(ended)
    return (ended.code == 0 and TEXT in " ".join(ended.out.split())) or ended.code == 5


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds all graphs."""
    model_path("tiny.en")
    folder = tmp_path_factory.mktemp("full")
    short = AUDIO_FORMATS["wav s16"].write(folder / "short", samples=speech(7.5, 3.5))
    for command in (["transcribe"], ["listen", "-q"]):
        assert run([*command, short], folder, CACHE).code == 0
    return CACHE


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A short recording in the current folder of the command."""
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(7.5, 3.5))


@needs_mounts
@pytest.mark.attack
@pytest.mark.parametrize("megabytes", [5, 20, 40, 60, 90])
def test_text_is_right_with_the_cache_on_a_full_disk(tmp_path: Path, megabytes: int) -> None:
    with disk(tmp_path / "cache", megabytes) as cache:
        for _ in range(2):
            assert is_right_or_refused(run(["transcribe", EXAMPLE], tmp_path, cache))
        if not any(cache.iterdir()):
            return
        leftovers = [path for path in cache.rglob("*") if path.name.startswith(".")]
        assert not leftovers


@pytest.mark.parametrize("megabytes", [1, 20])
def test_text_is_right_where_the_files_of_the_cache_cannot_grow(tmp_path: Path, megabytes: int) -> None:
    model_path("tiny.en")
    assert is_right_or_refused(limited(megabytes << 20, ["transcribe", EXAMPLE], tmp_path, tmp_path / "cache"))


def limited(size: int, arguments: list[object], folder: Path, cache: Path) -> Ended:
    """Run harken where no file can become larger than a size; the write fails as on a full disk."""
    import resource

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        [*HARKEN, *map(str, arguments)],
        cwd=folder,
        env=environment(cache),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        preexec_fn=limit,
        timeout=120,
    )
    return Ended(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


COMMANDS: dict[str, Callable[[Path], list[object]]] = {
    "transcribe": lambda out: ["transcribe", "talk.wav", "-f", "srt,json,html", "-o", out],
    "resume": lambda out: ["transcribe", "--resume", "talk.wav", "-f", "srt,vtt", "-o", out],
    "embedded": lambda out: ["transcribe", "talk.wav", "-f", "html", "--embed-audio", "-o", out],
    "eval": lambda out: ["eval", "manifest.jsonl", "--json", out / "talk.json"],
    "hypotheses": lambda out: ["eval", "manifest.jsonl", "--hypotheses", out / "h.jsonl"],
    "bench": lambda out: ["bench", "talk.wav", "--repeat", "1", "--json", out / "talk.json"],
    "plot": lambda out: ["plot", "talk.wav", "-o", out / "talk.html"],
}


APPENDED = ("talk.resume.jsonl", "h.jsonl")
"""Files that grow line by line, and may be there with the lines that had room."""


@needs_mounts
@pytest.mark.attack
@pytest.mark.parametrize("command", COMMANDS)
def test_output_on_a_full_disk_is_refused_and_existing_files_stay(
    tmp_path: Path, cache: Path, talk: Path, command: str
) -> None:
    write_manifest(tmp_path)
    with disk(tmp_path / "out", 1) as out:
        existing = {name: f"existing {name}".encode() for name in ("talk.srt", "talk.json", "talk.html")}
        for name, content in existing.items():
            (out / name).write_bytes(content)
        fill(out)
        ended = run(COMMANDS[command](out), tmp_path, cache)
        assert not error_faults(ended)
        assert ended.code == 5
        assert {path.name for path in out.iterdir()} - {"filling", *APPENDED} == {*existing}
        assert {name: (out / name).read_bytes() for name in existing} == existing


def test_output_that_cannot_grow_is_refused_and_the_existing_file_stays(
    tmp_path: Path, cache: Path, talk: Path
) -> None:
    (tmp_path / "talk.html").write_text("existing")
    ended = limited(50_000, ["transcribe", "talk.wav", "-f", "html", "--embed-audio"], tmp_path, cache)
    assert not error_faults(ended)
    assert ended.code == 5
    assert {path.name for path in tmp_path.iterdir()} == {"talk.wav", "talk.html"}
    assert (tmp_path / "talk.html").read_text() == "existing"


def write_manifest(folder: Path) -> None:
    (folder / "manifest.jsonl").write_text('{"audio": "talk.wav", "text": "ask what you can do"}\n')


STREAMED = (
    ["transcribe", EXAMPLE],
    ["models"],
    ["--help"],
    pytest.param(["transcribe", EXAMPLE, "-f", "json", "-o", "-"], marks=pytest.mark.attack),
    pytest.param(["decode", EXAMPLE], marks=pytest.mark.attack),
    pytest.param(["listen", EXAMPLE, "-q"], marks=pytest.mark.attack),
    pytest.param(["doctor"], marks=pytest.mark.attack),
)


@needs_dev_full
@pytest.mark.parametrize("arguments", STREAMED, ids=lambda arguments: " ".join(map(str, arguments[:1])))
def test_standard_output_that_takes_nothing_is_an_error_of_writing(
    tmp_path: Path, cache: Path, arguments: list[object]
) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run(
            [*HARKEN, *map(str, arguments)],
            cwd=tmp_path,
            env=environment(cache),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    ended = Ended(code=done.returncode, out="", err=done.stderr.decode())
    assert not error_faults(ended)
    assert ended.code == 5
    assert "No space left" in ended.err


@needs_dev_full
def test_standard_error_that_takes_nothing_does_not_lose_the_text(tmp_path: Path, cache: Path) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run(
            [*HARKEN, "transcribe", "-v", str(EXAMPLE), "-f", "txt", "-o", "."],
            cwd=tmp_path,
            env=environment(cache),
            stdin=subprocess.DEVNULL,
            stderr=full,
        )
    assert done.returncode == 0
    assert TEXT in " ".join((tmp_path / "jfk.txt").read_text().split())


@needs_mounts
@pytest.mark.attack
def test_what_was_recorded_stays_when_the_disk_fills_up(tmp_path: Path, cache: Path) -> None:
    """2 MB hold a minute of sound."""
    sound = np.tile((speech(0, 11) * 32767).astype("<i2"), 7)
    with disk(tmp_path / "out", 2) as out:
        ended = run(
            ["listen", "-", "--pcm", "-q", "--delay", "high", "--record", out / "x.wav", "-o", out / "x.srt"],
            tmp_path,
            cache,
            stdin=sound.tobytes(),
        )
        assert not error_faults(ended)
        assert ended.code == 5
        with wave.open(str(out / "x.wav")) as recorded:
            content = recorded.readframes(recorded.getnframes())
        assert len(content) > 1_800_000
        assert content == sound.tobytes()[: len(content)]
        assert {path.name for path in out.iterdir()} <= {"x.wav", "x.srt", "x.srt.part"}


def test_what_was_recorded_stays_when_the_file_cannot_grow(tmp_path: Path, cache: Path) -> None:
    AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(0, 11))
    ended = limited(200_000, ["listen", "talk.wav", "-q", "--record", "x.wav"], tmp_path, cache)
    assert not error_faults(ended)
    assert ended.code == 5
    with wave.open(str(tmp_path / "x.wav")) as recorded:
        assert recorded.getnframes() * 2 > 200_000 - 44 - 1_600  # but for one block of 50 ms
    assert {path.name for path in tmp_path.iterdir()} == {"talk.wav", "x.wav"}

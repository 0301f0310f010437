"""``harken batch`` as a process that is killed, interrupted, or started twice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_runner import eventually
from fakes.archive_recognizer import GO, read_rows, transcribed, use_in_workers, write_archive
from harken.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals")
HARKEN = [sys.executable, str(Path(__file__).with_name("archive_harken.py")), "batch"]
PATIENCE_S = 120  # on a machine with other work
OPTIONS = ("--shard-minutes", "2")
NAMES = [f"{number}.wav" for number in range(10)]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """An archive of which the second half waits until it is told to go on."""
    contents = {name: "words" if number < 5 else "wait words" for number, name in enumerate(NAMES)}
    return write_archive(tmp_path / "archive", contents)


def start(manifest: Path, out: Path, workers: int) -> subprocess.Popen[str]:
    """Start the command in a group of its own."""
    return subprocess.Popen(
        [*HARKEN, str(manifest), str(out), *OPTIONS, "--workers", str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def shards_of(out: Path) -> list[Path]:
    return [*(out / "shards").glob("*.jsonl")]


@pytest.fixture
def finish(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that runs the command to its end, in this process; only what is not there yet is done."""
    use_in_workers(monkeypatch)

    def finish(out: Path) -> None:
        (manifest.parent / GO).touch()
        done = set(read_rows(out))
        before = len(transcribed(manifest.parent))
        assert main(["batch", str(manifest), str(out), *OPTIONS]) == 0
        assert {name for name, row in read_rows(out).items() if row["text"].endswith("words")} == {*NAMES}
        assert sorted(transcribed(manifest.parent)[before:]) == sorted(set(NAMES) - done)

    return finish


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_after_the_driver_was_killed_only_shards_that_are_missing_are_done(
    manifest: Path, tmp_path: Path, finish: Callable[[Path], None], workers: int
) -> None:
    out = tmp_path / "out"
    process = start(manifest, out, workers)
    assert eventually(lambda: len(shards_of(out)) >= 2, PATIENCE_S)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert eventually(lambda: not is_group_alive(process.pid), PATIENCE_S)
    assert set(read_rows(out)) < set(NAMES)
    finish(out)
    assert not [*out.rglob("*.tmp"), *out.rglob(".*")]


@pytest.mark.parametrize(
    ("workers", "number"), [(1, signal.SIGTERM), pytest.param(0, signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_signal_ends_the_run_with_a_line_and_the_same_command_goes_on(
    manifest: Path, tmp_path: Path, finish: Callable[[Path], None], workers: int, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    process = start(manifest, out, workers)
    assert eventually(lambda: len(shards_of(out)) >= 2, PATIENCE_S)
    os.killpg(process.pid, number)
    stdout, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert eventually(lambda: not is_group_alive(process.pid), PATIENCE_S)
    line = rf"harken: {word}; (\d+) of 10 recordings are done, and the same command goes on from there\n"
    found = re.fullmatch(line, said)
    assert found, said
    assert int(found[1]) <= len(read_rows(out))  # a worker may have published what its driver had not heard of
    assert not stdout
    finish(out)

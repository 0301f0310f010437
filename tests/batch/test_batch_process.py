"""``harken batch`` as a process that is killed, interrupted, or started twice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runner import eventually
from fakes.archive_recognizer import GO, read_rows, transcribed, write_archive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals")
HARKEN = [sys.executable, str(Path(__file__).with_name("archive_harken.py")), "batch"]
PATIENCE_S = 120  # on a machine with other work
NAMES = [f"{number}.wav" for number in range(10)]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """An archive of which the second half waits until it is told to go on."""
    contents = {name: "words" if number < 5 else "wait words" for number, name in enumerate(NAMES)}
    return write_archive(tmp_path / "archive", contents)


def start(manifest: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in a group of its own."""
    return subprocess.Popen(
        [*HARKEN, str(manifest), str(out), "--shard-minutes", "2", *arguments],
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


def finish(manifest: Path, out: Path, *arguments: str) -> str:
    """Run the command to its end, and return what it says; only what is not there yet is done."""
    (manifest.parent / GO).touch()
    done = set(read_rows(out))
    before = len(transcribed(manifest.parent))
    process = start(manifest, out, *arguments)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert {name for name, row in read_rows(out).items() if row["text"].endswith("words")} == {*NAMES}
    assert sorted(transcribed(manifest.parent)[before:]) == sorted(set(NAMES) - done)
    return said


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_after_the_driver_was_killed_only_shards_that_are_missing_are_done(
    manifest: Path, tmp_path: Path, workers: int
) -> None:
    out = tmp_path / "out"
    process = start(manifest, out, "--workers", str(workers))
    assert eventually(lambda: len(shards_of(out)) >= 2, PATIENCE_S)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert eventually(lambda: not is_group_alive(process.pid), PATIENCE_S)
    assert set(read_rows(out)) < set(NAMES)
    finish(manifest, out, "--workers", str(workers))
    assert not [*out.rglob("*.tmp"), *out.rglob(".*")]


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_line_and_the_same_command_goes_on(
    manifest: Path, tmp_path: Path, workers: int, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    process = start(manifest, out, "--workers", str(workers))
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
    finish(manifest, out, "--workers", str(workers))


@pytest.mark.nightly
def test_of_workers_that_are_killed_from_outside_no_row_is_lost_or_doubled(
    manifest: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(manifest, out, "--workers", "2")
    assert eventually(lambda: len(shards_of(out)) >= 2, PATIENCE_S)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(2):
        killed = children.read_text().split()[-1]
        os.kill(int(killed), signal.SIGKILL)
        assert eventually(lambda killed=killed: killed not in children.read_text().split(), PATIENCE_S)
    (manifest.parent / GO).touch()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert set(read_rows(out)) == set(NAMES)


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [0, 2])
def test_ten_thousand_tiny_recordings_have_a_row_each(tmp_path: Path, workers: int) -> None:
    names = [f"{number}.wav" for number in range(10_000)]
    manifest = write_archive(tmp_path / "archive", dict.fromkeys(names, "text"))
    out = tmp_path / "out"
    process = start(manifest, out, "--workers", str(workers), "--shard-minutes", "60")
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert read_rows(out).keys() == set(names)
    assert len(shards_of(out)) < 250

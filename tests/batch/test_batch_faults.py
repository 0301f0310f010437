"""Faults of recordings, of workers and of the disk: what they cost, and what the output folder has behind them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from batch_files import RECIPE

from fakes.archive_recognizer import (
    ArchiveWorkerSettings,
    read_rows,
    transcribed,
    use_in_workers,
    write_archive,
)
from harken.backend_factory import gpu_in_turn
from harken.batch import BatchOptions, run_batch
from harken.batch.plan import Shard, weights_digest
from harken.batch.recordings import BatchRecording
from harken.batch.store import Store
from harken.batch.worker import Task, WorkerSettings
from harken.batch.workers import Broken, Event, ProcessWorkers
from harken.errors import OutputError, PlanError, WorkerError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
PROCESSES = BatchOptions(workers=2, shard_minutes=4)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_in_workers(monkeypatch)


def good(count: int) -> dict[str, str | None]:
    return {f"{number}.wav": f"text {number}" for number in range(count)}


def test_a_recording_that_kills_every_worker_stands_alone_in_its_row(tmp_path: Path) -> None:
    others = {f"b{n}.wav": "b" for n in range(4)}
    manifest = write_archive(tmp_path, {**good(3), "poison.wav": "kill", **others})
    notes: list[str] = []
    summary = run_batch(manifest, tmp_path / "out", PROCESSES, note=notes.append)
    rows = read_rows(tmp_path / "out")
    assert (summary.complete, summary.rows, summary.failures) == (True, 8, {"WorkerLost": 1})
    assert [name for name, row in rows.items() if "error" in row] == ["poison.wav"]
    assert rows["poison.wav"]["error"]["tries"] == 3
    assert "poison.wav: its worker ended with signal SIGKILL" in rows["poison.wav"]["error"]["message"]
    assert any(note.endswith("it is given up") for note in notes)
    read = len(transcribed(tmp_path))
    assert run_batch(manifest, tmp_path / "out", PROCESSES).new_rows == 0
    assert len(transcribed(tmp_path)) == read


def test_a_worker_that_hangs_is_ended_and_another_one_takes_its_place(tmp_path: Path) -> None:
    write_archive(tmp_path, {"stuck.wav": "hang"})
    recording = BatchRecording(location=str(tmp_path / "stuck.wav"), name="stuck.wav", keys={})
    recipe = replace(RECIPE, weights=weights_digest({}))
    task = Task(Shard((recording,), recipe.digest))
    settings = ArchiveWorkerSettings(recipe=recipe, folder=str(tmp_path / "out"), threads=1, time_limit=20.0)
    events: list[Event] = []
    with closing(ProcessWorkers(settings, 1)) as workers:
        while not workers.n_free:
            workers.wait(60, events.append)
        workers.start(task)
        while not transcribed(tmp_path):
            workers.wait(0.01, events.append)
        workers.give_up(task)
        while not workers.n_free:
            workers.wait(60, events.append)
    assert events == [Broken(task, "its worker ended with signal SIGKILL")]


def test_workers_take_the_gpus_of_their_machine_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    numbers: list[int] = []

    def start(target: object, args: Any, daemon: bool) -> Mock:
        numbers.append(args[1].number)
        return Mock()

    monkeypatch.setattr("harken.batch.workers._CONTEXT", Mock(Pipe=Pipe, Process=start))
    settings = WorkerSettings(recipe=RECIPE, folder="out", threads=1, time_limit=20.0)
    with closing(ProcessWorkers(settings, 3)):
        assert [gpu_in_turn(number) for number in numbers] == ["cuda:0", "cuda:1", "cuda:0"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu_in_turn(1) == "cuda"  # which loading refuses


def test_too_little_memory_or_a_fault_of_the_engine_costs_only_the_row_of_its_recording(
    tmp_path: Path,
) -> None:
    contents = {**good(3), "huge.wav": "memory", "once.wav": "memory once", "odd.wav": "crash"}
    manifest = write_archive(tmp_path, contents)
    summary = run_batch(manifest, tmp_path / "out", BatchOptions(shard_minutes=4))
    rows = read_rows(tmp_path / "out")
    assert (summary.rows, summary.failures) == (6, {"MemoryError": 1, "RuntimeError": 1})
    assert "emory" in rows["huge.wav"]["error"]["message"]
    assert rows["once.wav"]["text"] == "memory once"
    assert rows["odd.wav"]["error"]["message"].endswith("odd.wav: RuntimeError: a fault of the engine")


def refuse_shards(patch: pytest.MonkeyPatch, refused: Callable[[], bool] = lambda: True) -> list[str]:
    """Have the disk be full for rows while a condition holds; return their names."""
    publish, tries = Store.publish, list[str]()

    def publish_others(self: Store, name: str, chunks: Iterable[str | bytes]) -> None:
        if name.startswith("shards/") and refused():
            tries.append(name)
            raise OutputError(f"{name}: cannot be written: {os.strerror(errno.ENOSPC)}")
        publish(self, name, chunks)

    patch.setattr(Store, "publish", publish_others)
    return tries


def test_a_full_disk_ends_the_run_after_some_tries_and_another_run_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, options = write_archive(tmp_path, good(4)), BatchOptions(shard_minutes=1)
    with monkeypatch.context() as patch:
        tries = refuse_shards(patch, lambda: any((tmp_path / "out" / "shards").glob("*.jsonl")))
        with pytest.raises(OutputError, match="No space left"):
            run_batch(manifest, tmp_path / "out", options)
    assert tries.count(tries[0]) == options.tries
    done = set(read_rows(tmp_path / "out"))
    assert len(done) == 1
    before = len(transcribed(tmp_path))
    assert run_batch(manifest, tmp_path / "out", options).rows == 4
    assert set(transcribed(tmp_path)[before:]) == read_rows(tmp_path / "out").keys() - done


def test_no_worker_starts_where_all_of_them_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArchiveWorkerSettings, "__reduce__", lambda self: (os._exit, (9,)))
    reason = r"3 workers in turn ended while they loaded the model: .* exit status 9"
    with pytest.raises(WorkerError, match=reason):
        run_batch(write_archive(tmp_path, good(2)), tmp_path / "out", PROCESSES)


def test_rows_that_cannot_be_written_end_the_run(tmp_path: Path) -> None:
    manifest = write_archive(tmp_path, good(4))
    options = BatchOptions(shard_minutes=1, formats=("txt",))
    transcripts = tmp_path / "out" / "transcripts"
    transcripts.parent.mkdir()
    transcripts.touch()
    with pytest.raises(OutputError, match="cannot be made a folder"):
        run_batch(manifest, tmp_path / "out", options)
    transcripts.unlink()
    assert run_batch(manifest, tmp_path / "out", options).rows == 4


def test_rows_that_replace_failed_ones_are_counted_only_when_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, retry = write_archive(tmp_path, {**good(2), "late.wav": None}), BatchOptions(retry_failed=True)
    assert run_batch(manifest, tmp_path / "out").failed == 1
    (tmp_path / "late.wav").write_text("late", encoding="utf-8")
    with monkeypatch.context() as patch:
        refuse_shards(patch)
        with pytest.raises(OutputError):
            run_batch(manifest, tmp_path / "out", retry)
    assert run_batch(manifest, tmp_path / "out").failed == 1
    assert run_batch(manifest, tmp_path / "out", retry).failed == 0


def test_a_failure_of_who_watches_the_batch_is_no_fault_of_a_recording(tmp_path: Path) -> None:
    def fail(state: object) -> None:
        raise ValueError("the one who watches")

    with pytest.raises(ValueError, match="the one who watches"):
        run_batch(write_archive(tmp_path, good(2)), tmp_path / "out", on_state=fail)
    assert not (tmp_path / "out" / "shards").exists()


def test_a_folder_on_which_another_driver_works_is_refused(tmp_path: Path) -> None:
    manifest = write_archive(tmp_path, good(1))
    out = str(tmp_path / "out")
    with (
        Store(out).locked(),
        pytest.raises(PlanError, match="another 'harken batch' writes to it; wait for its end"),
    ):
        run_batch(manifest, out)
    assert run_batch(manifest, out).rows == 1

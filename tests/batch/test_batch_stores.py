"""A whole batch from object stores and into them, and from folders that hold its own output."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import wave
from pathlib import Path

import pytest

from harken.audio import load_audio
from harken.batch import BatchOptions, BatchSummary, run_batch
from harken.errors import PlanError
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

SPEECH = Path(__file__).parents[2] / "examples" / "jfk.flac"

pytestmark = pytest.mark.real


def run(source: object, folder: object, **options: object) -> BatchSummary:
    transcribe_options = TranscribeOptions(word_timestamps=True)
    load = {"model": "tiny.en", "threads": 1}
    return run_batch(
        os.fspath(source), os.fspath(folder), BatchOptions(**options), transcribe_options, load=load
    )


def rows_of(folder: Path) -> list[dict]:
    return [
        json.loads(line)
        for file in folder.glob("shards/*.jsonl")
        for line in file.read_text("utf-8").splitlines()
    ]


def test_a_folder_that_holds_its_own_output_is_done_once_and_its_recordings_stay(tmp_path):
    with wave.open(str(tmp_path / "talk.wav"), "wb") as writer:
        writer.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        writer.writeframes((load_audio(SPEECH)[: 2 * SAMPLE_RATE] * 32768).astype("<i2").tobytes())
    shutil.copy(tmp_path / "talk.wav", tmp_path / "talk[1] ü.wav")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.wav")}
    for folder in (tmp_path, tmp_path / "out"):
        first = run(tmp_path, folder, formats=("srt", "html", "txt"))
        second = run(tmp_path, folder, formats=("txt", "srt", "html"))
        assert (first.rows, first.failed, first.new_rows) == (2, 0, 2)
        assert (second.rows, second.new_rows, second.complete) == (2, 0, True)
        files = {name for row in rows_of(folder) for name in row["files"].values()}
        assert len(files) == 6
        assert all((folder / name).stat().st_size for name in files)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.wav")} == before


@pytest.mark.nightly
def test_a_batch_from_s3_into_s3(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    _host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        system = fsspec.filesystem("s3")
        system.mkdir("talks")
        system.pipe_file("talks/in/a b/speech.flac", SPEECH.read_bytes())
        with tarfile.open(tmp_path / "0.tar", "w") as archive:
            archive.add(SPEECH, "x/speech.flac")
        system.put_file(str(tmp_path / "0.tar"), "talks/in/0.tar")
        lines = [
            {"audio_filepath": "./a b/speech.flac", "id": 1},
            {"audio_filepath": "s3://talks/in/a b/speech.flac", "offset": 3.0, "duration": 5.0},
            {"audio_filepath": "missing.flac", "note": "ü"},
            {"audio_filepath": str(SPEECH)},
        ]
        manifest = "".join(json.dumps(line) + "\n" for line in lines)
        system.pipe_file("talks/in/m.jsonl", manifest.encode())
        first = run("s3://talks/in/m.jsonl", "s3://talks/out/", formats=("srt",), shard_minutes=0.2)
        assert (first.rows, first.failed, first.complete) == (4, 1, True)
        second = run("s3://talks/in/m.jsonl", "s3://talks/out", formats=("srt",), shard_minutes=0.2)
        assert (second.rows, second.new_rows) == (4, 0)
        with pytest.raises(PlanError, match="formats was"):
            run("s3://talks/in/m.jsonl", "s3://talks/out")
        system.invalidate_cache()
        rows = {}
        for path in system.glob("talks/out/shards/*.jsonl"):
            for line in system.cat_file(path).splitlines():
                row = json.loads(line)
                rows[row["audio_filepath"]] = row
        assert len(rows) == 4
        whole, piece, missing, local = (rows[line["audio_filepath"]] for line in lines)
        assert whole["text"] == local["text"]
        assert whole["id"] == 1
        assert 3.0 <= piece["segments"][0]["start"] <= piece["segments"][-1]["end"] <= 8.1
        assert missing["error"]["message"] == "s3://talks/in/missing.flac: no such file"
        assert all(system.exists(f"talks/out/{row['files']['srt']}") for row in (whole, piece, local))
        assert not system.exists("talks/out/_driver.json")
        for source in ("s3://talks/in", "s3://talks/in/*.tar", "s3://talks/in/**/*.flac"):
            assert run(source, tmp_path / str(len(source))).failed == 0
        for source, reason in {
            "s3://talks/none.jsonl": "s3://talks/none.jsonl: ",
            "s3://nobody/m.jsonl": "s3://nobody/m.jsonl: ",
            "s3://nobody/folder": "s3://nobody/folder: ",
        }.items():
            with pytest.raises(PlanError) as caught:
                run(source, tmp_path / "none")
            assert str(caught.value).startswith(reason)
            assert "\n" not in str(caught.value)
    finally:
        server.stop()

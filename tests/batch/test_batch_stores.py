"""A whole batch from object stores and into them, and from folders that hold its own output."""

from __future__ import annotations

import json
import os
import shutil
import wave
from pathlib import Path

import pytest

from harken.audio import load_audio
from harken.batch import BatchOptions, BatchSummary, run_batch
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


def test_a_batch_from_a_store_into_a_store_is_done_once_and_a_missing_recording_is_an_error(memory):
    memory.pipe_file("/talks/in/a b/speech.flac", SPEECH.read_bytes())
    lines = [
        {"audio_filepath": "./a b/speech.flac", "id": 1},
        {"audio_filepath": "memory://talks/in/a b/speech.flac", "offset": 3.0, "duration": 5.0},
        {"audio_filepath": "missing.flac", "note": "ü"},
        {"audio_filepath": str(SPEECH)},
    ]
    memory.pipe_file("/talks/in/m.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    given = {"formats": ("srt",), "shard_minutes": 0.2}
    first = run("memory://talks/in/m.jsonl", "memory://out/", **given)
    assert (first.rows, first.failed, first.complete) == (4, 1, True)
    second = run("memory://talks/in/m.jsonl", "memory://out", **given)
    assert (second.rows, second.new_rows) == (4, 0)
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

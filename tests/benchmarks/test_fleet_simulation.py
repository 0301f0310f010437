"""The plan and the driver on a simulated cluster: nothing is lost, and no worker waits long for work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet._archive import LONGEST_S, draw_lengths, write_manifest
from fleet._simulated import Cluster
from fleet.cluster import simulate
from fleet.kills import compare
from harken.batch.plan import cut_shards
from harken.batch.recordings import BatchRecording

RECORDED_S = (2.0, 3.0, 4.0, 5.0, 8.0, 12.0, 15.0, 34.0)
CLUSTER = Cluster(workers=20)


def run(tmp_path: Path, hours: float, cluster: Cluster, *, mixed: bool, **plan: Any) -> dict[str, Any]:
    manifest = tmp_path / "archive.jsonl"
    write_manifest(manifest, RECORDED_S, hours, mixed=mixed)
    return simulate(manifest, tmp_path / "out", cluster, **plan)


def recordings(*lengths: float) -> list[BatchRecording]:
    return [
        BatchRecording(location=f"{i}.mp3", name=f"{i}.mp3", keys={"audio_filepath": f"{i}.mp3"}, duration_s=s)
        for i, s in enumerate(lengths)
    ]


@pytest.mark.parametrize("mixed", [False, True], ids=["short recordings first", "mixed"])
def test_no_worker_waits_long_for_work_in_any_order_of_the_manifest(tmp_path: Path, mixed: bool) -> None:
    figures = run(tmp_path, 400, CLUSTER, mixed=mixed)
    assert figures["idle_percent"] < 2
    assert figures["rows_missing"] == figures["rows_doubled"] == 0


def test_every_recording_is_done_once_though_workers_are_lost(tmp_path: Path) -> None:
    figures = run(tmp_path, 200, Cluster(workers=20, hours_to_loss=0.5), mixed=True)
    assert figures["workers_lost"] > 3
    assert figures["rows_missing"] == figures["rows_doubled"] == 0


def test_workers_are_not_idle_while_others_send_progress(tmp_path: Path) -> None:
    figures = run(tmp_path, 200, Cluster(workers=20, progress_s=5.0), mixed=True)
    assert figures["idle_percent"] < 2


def test_one_recording_that_outlasts_all_others_bounds_the_end(tmp_path: Path) -> None:
    figures = run(tmp_path, 2, CLUSTER, mixed=True)
    assert figures["least_idle_percent"] > 50


def test_an_archive_has_the_hours_that_were_asked_for_and_no_endless_recording() -> None:
    lengths = [each for _, kind in draw_lengths(RECORDED_S, 100) for each in kind]
    assert 100 <= sum(lengths) / 3600 < 105
    assert max(lengths) <= LONGEST_S


def test_short_recordings_are_cut_last_and_long_ones_stand_alone() -> None:
    lengths = (10.0, 4000.0, 20.0, 600.0, 30.0, 2000.0, 700.0)
    shards = [*cut_shards(recordings(*lengths), "recipe", shard_s=1800, workers=4)]
    assert [[each.estimate_s for each in shard.recordings] for shard in shards] == [
        [4000.0], [2000.0], [600.0], [700.0], [10.0, 20.0, 30.0],
    ]  # fmt: skip


def test_rows_that_are_lost_doubled_or_different_are_counted() -> None:
    expected = [{"id": name, "text": name} for name in "abcd"]
    rows = [
        {"id": "a", "text": "a"},
        {"id": "a", "text": "a"},
        {"id": "b", "text": "x"},
        {"id": "c", "text": "c"},
    ]
    assert compare(expected, rows) == {"rows": 4, "lost": 1, "doubled": 1, "different": 1}

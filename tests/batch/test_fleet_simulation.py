"""The plan and the driver on a simulated cluster: nothing is lost, and no worker waits long for work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes.cluster import Cluster, simulate
from harken.batch.plan import cut_shards
from harken.batch.recordings import BatchRecording

KINDS = ((0.02, 8), (0.48, 240), (0.30, 2100), (0.20, 3000))
"""Share of the hours and median length of messages, calls, podcasts and lectures."""


def archive(hours: float, *, mixed: bool) -> list[float]:
    """Return the lengths of an archive, one kind after the other or mixed."""
    rng = np.random.default_rng(0)
    lengths = np.concatenate(
        [s * rng.lognormal(0, 0.3, int(share * hours * 3600 / s)) for share, s in KINDS]
    ).clip(1, 5 * 3600)
    return (rng.permutation(lengths) if mixed else lengths).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("mixed", [False, True], ids=["short recordings first", "mixed"])
def test_no_worker_waits_long_for_work_in_any_order_of_the_manifest(tmp_path: Path, mixed: bool) -> None:
    outcome = simulate(archive(400, mixed=mixed), tmp_path, Cluster(workers=20))
    assert outcome.idle_percent < 2
    assert outcome.rows_missing == outcome.rows_doubled == 0


def test_every_recording_is_done_once_though_workers_are_lost(tmp_path: Path) -> None:
    outcome = simulate(archive(200, mixed=True), tmp_path, Cluster(workers=20, hours_to_loss=0.5))
    assert outcome.workers_lost > 3
    assert outcome.rows_missing == outcome.rows_doubled == 0


def test_workers_are_not_idle_while_others_send_progress(tmp_path: Path) -> None:
    outcome = simulate(archive(200, mixed=True), tmp_path, Cluster(workers=20, progress_s=5.0))
    assert outcome.idle_percent < 2


def test_one_recording_that_outlasts_all_others_bounds_the_end(tmp_path: Path) -> None:
    outcome = simulate([8.0] * 100 + [3600.0], tmp_path, Cluster(workers=20))
    assert outcome.least_idle_percent > 50


def test_short_recordings_are_cut_last_and_long_ones_stand_alone() -> None:
    lengths = (10.0, 4000.0, 20.0, 600.0, 30.0, 2000.0, 700.0)
    recordings = [
        BatchRecording(location=f"{i}.mp3", name=f"{i}.mp3", keys={"audio_filepath": f"{i}.mp3"}, duration_s=s)
        for i, s in enumerate(lengths)
    ]
    shards = [*cut_shards(recordings, "recipe", shard_s=1800, workers=4)]
    assert [[each.estimate_s for each in shard.recordings] for shard in shards] == [
        [4000.0], [2000.0], [600.0], [700.0], [10.0, 20.0, 30.0],
    ]  # fmt: skip

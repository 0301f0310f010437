"""The files of a batch: the rows of each shard, their counts, and what is wanted beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from harken.batch.locations import is_url
from harken.batch.parquet import parquet_bytes
from harken.batch.plan import (
    PARQUET_FOLDER,
    PARQUET_SUFFIX,
    REPORT_FOLDER,
    REPORT_SUFFIX,
    ROWS_SUFFIX,
    SHARD_FOLDER,
)
from harken.batch.recipe import Recipe
from harken.batch.recordings import BatchRecording, Json
from harken.batch.rows import ShardReport, report_of, row_line
from harken.batch.store import Store
from harken.formats import RecordingLink, render
from harken.results import Transcript

TRANSCRIPT_FOLDER = "transcripts"
_READING_THREADS = 16


def publish_shard(
    store: Store,
    recipe: Recipe,
    name: str,
    rows: Sequence[Json],
    report: ShardReport,
    *,
    replaces: bool = False,
) -> None:
    """Publish the rows of a shard. They come last: a shard whose rows are there has everything else, too.

    Where they replace other rows, the counts of those are removed first, so that they are never taken for the new ones.

    Raises
    ------
    OutputError
        If something cannot be written.
    """
    if replaces:
        store.remove(f"{REPORT_FOLDER}/{name}{REPORT_SUFFIX}")
    if recipe.parquet:
        store.publish(f"{PARQUET_FOLDER}/{name}{PARQUET_SUFFIX}", [parquet_bytes(rows)])
    counts = f"{REPORT_FOLDER}/{name}{REPORT_SUFFIX}", [json.dumps(asdict(report))]
    if not replaces:
        store.publish(*counts)
    store.publish(f"{SHARD_FOLDER}/{name}{ROWS_SUFFIX}", map(row_line, rows))
    if replaces:
        store.publish(*counts)


def publish_side_files(
    store: Store, recipe: Recipe, recording: BatchRecording, transcript: Transcript
) -> dict[str, str]:
    """Publish the transcript of a recording in the formats of the recipe.

    Returns
    -------
    dict of str to str
        Names of the files in the output folder, by format.

    Raises
    ------
    OutputError
        If one cannot be written.
    """
    names = {name: f"{TRANSCRIPT_FOLDER}/{recording.side_name}.{name}" for name in recipe.formats}
    for format_name, name in names.items():
        link = None
        if not (is_url(store.folder) or is_url(recording.location) or recording.bytes):
            link = RecordingLink(
                path=Path(recording.location), transcript_folder=Path(store.folder, name).parent
            )
        store.publish(name, render(transcript, format_name, recipe.layout, link))
    return names


def read_rows(store: Store, name: str) -> list[Json]:
    """Return the rows of a shard that is there."""
    content = store.read(f"{SHARD_FOLDER}/{name}{ROWS_SUFFIX}") or b""
    return [json.loads(line) for line in content.split(b"\n") if line]


def read_report(store: Store, name: str) -> ShardReport:
    """Return the counts of a shard that is there; those of its rows, if their own file is lost."""
    try:
        return ShardReport(**json.loads(store.read(f"{REPORT_FOLDER}/{name}{REPORT_SUFFIX}") or b""))
    except (ValueError, TypeError):
        return report_of(read_rows(store, name), work_s=0.0)


def read_reports(store: Store, names: Collection[str]) -> dict[str, ShardReport]:
    """Return the counts of shards that are there; an object store is asked for many at once, as it answers late."""
    read = partial(read_report, store)
    if not is_url(store.folder):
        return {name: read(name) for name in names}
    with ThreadPoolExecutor(_READING_THREADS) as threads:
        return dict(zip(names, threads.map(read, names), strict=True))

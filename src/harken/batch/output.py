"""The files of a batch: the rows of each shard, their counts, and what is wanted beside them."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from harken.batch.locations import is_url
from harken.batch.plan import (
    PARQUET_FOLDER,
    PARQUET_SUFFIX,
    REPORT_FOLDER,
    REPORT_SUFFIX,
    ROWS_SUFFIX,
    SHARD_FOLDER,
    Recipe,
)
from harken.batch.recordings import PATH_KEYS, BatchRecording, Json
from harken.batch.rows import RESULT_KEYS, BatchSummary, ShardReport, report_of, row_line
from harken.batch.store import Store
from harken.errors import BackendUnavailable, install_hint
from harken.formats import RecordingLink, render
from harken.results import Transcript

SUMMARY_FILE = "_summary.json"
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


def publish_summary(store: Store, summary: BatchSummary) -> None:
    """Write the summary of a batch to the output folder.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    store.publish(SUMMARY_FILE, [json.dumps(asdict(summary), indent=2) + "\n"])


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


def require_pyarrow() -> None:
    """Check that pyarrow is there.

    Raises
    ------
    BackendUnavailable
        If it is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable(
            f"Parquet needs pyarrow, which is missing; {install_hint('parquet')} installs it"
        ) from error


COLUMNS = {
    "id": str,
    "audio_filepath": str,
    "offset": float,
    "text": str,
    "language": str,
    "language_probability": float,
    "duration": float,
    "model": str,
    "segments": [
        {
            "start": float,
            "end": float,
            "text": str,
            "language": str,
            "avg_logprob": float,
            "hallucination_score": float,
            "words": [{"start": float, "end": float, "word": str, "probability": float}],
        }
    ],
    "unwritten": [{"start": float, "end": float, "reason": str}],
    "files": {str: str},
    "error": {"type": str, "message": str, "tries": int},
    "input": str,
}
"""Columns of Parquet and their types: a list of one type, an object of several, or ``{str: str}``, any keys."""


def parquet_bytes(rows: Sequence[Json]) -> bytes:
    """Return rows as a Parquet file.

    All shards have the same columns of the same types, so that they are one dataset to every reader. The keys of the
    manifest, which may be any, are the column ``input``: an object of JSON, as the row carries it.
    """
    import pyarrow
    import pyarrow.parquet

    def arrow_type(kind: Any) -> Any:
        if isinstance(kind, list):
            return pyarrow.list_(arrow_type(kind[0]))
        if kind == {str: str}:
            return pyarrow.map_(pyarrow.string(), pyarrow.string())
        if isinstance(kind, dict):
            return pyarrow.struct([(name, arrow_type(item)) for name, item in kind.items()])
        return {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64()}[kind]

    schema = pyarrow.schema({name: arrow_type(kind) for name, kind in COLUMNS.items()})
    table = pyarrow.Table.from_pylist([*map(_parquet_row, rows)], schema)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _parquet_row(row: Json) -> Json:
    """Return a row with the values of its columns; those of the manifest are in one of them."""
    carried = {key: value for key, value in row.items() if key not in RESULT_KEYS}
    paths = (carried[key] for key in PATH_KEYS if isinstance(carried.get(key), str))
    return row | {
        "id": str(row["id"]),
        "audio_filepath": next(paths, None),
        "files": [*row.get("files", {}).items()],
        "offset": None if carried.get("offset") is None else float(carried["offset"]),
        "input": json.dumps(carried, ensure_ascii=False),
    }

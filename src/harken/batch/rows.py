"""The rows of a batch: one JSON object a recording, with the keys of its line and its transcript, or its error.

And their files: the rows of each shard, their counts, and what is wanted beside them.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harken.batch.inputs import PATH_KEYS, BatchRecording
from harken.batch.locations import is_url
from harken.batch.plan import Recipe
from harken.batch.store import PARQUET, REPORT, ROWS, ShardFiles, Store
from harken.errors import importing
from harken.formats import RecordingLink, as_json, render
from harken.manifests import Json
from harken.results import Segment, Transcript, shifted

COLUMNS: dict[str, Any] = {
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
            "speaker": str,
            "words": [{"start": float, "end": float, "word": str, "probability": float, "speaker": str}],
        }
    ],
    "unwritten": [{"start": float, "end": float, "reason": str}],
    "files": {str: str},
    "error": {"type": str, "message": str, "tries": int},
    "input": str,
}
"""Columns of Parquet and their types: a list of one type, an object of several, or ``{str: str}``, any keys."""
RESULT_KEYS = COLUMNS.keys() - {"audio_filepath", "offset", "input"}
"""Keys of rows that are harken's own; the others come from the manifest."""
_SEGMENT_KEYS: tuple[str, ...] = tuple(COLUMNS["segments"][0])
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """The counts of a shard."""

    rows: int
    failed: Mapping[str, int] = field(default_factory=dict)  # recordings, by the type of their error
    audio_s: float = 0.0  # transcribed
    work_s: float = 0.0  # that the worker took
    first_failure: str = ""  # the message of the first recording that failed

    @property
    def n_failed(self) -> int:
        """Number of recordings that failed."""
        return sum(self.failed.values())


def sum_reports(reports: Iterable[ShardReport]) -> ShardReport:
    """Return the counts of several shards."""
    reports = [*reports]
    failed: Counter[str] = Counter()
    for report in reports:
        failed.update(report.failed)
    return ShardReport(
        rows=sum(report.rows for report in reports),
        failed=dict(failed),
        audio_s=sum(report.audio_s for report in reports),
        work_s=sum(report.work_s for report in reports),
        first_failure=next((report.first_failure for report in reports if report.first_failure), ""),
    )


def transcript_row(
    recording: BatchRecording, transcript: Transcript, model: str, files: Mapping[str, str]
) -> Json:
    """Return the row of a recording.

    Times count from the start of the recording, also those of a piece of it. A key of its line that the row needs for
    itself, such as ``text``, is carried as ``input_NAME``.
    """
    result: Json = {
        "id": _id_of(recording),
        "text": transcript.text,
        "language": transcript.language,
        "language_probability": as_json(transcript.language_probability),
        "duration": transcript.duration_s,
        "model": model,
        "segments": [*map(_segment_row, transcript.segments)],
    }
    if transcript.unwritten:
        result["unwritten"] = as_json(transcript.unwritten)
    if files:
        result["files"] = {**files}
    return carried_keys(recording) | result


def shift_times(transcript: Transcript, offset_s: float) -> Transcript:
    """Return a transcript of a piece with its times counted from the start of the recording."""
    if not offset_s:
        return transcript
    return replace(
        transcript,
        segments=tuple(shifted(segment, offset_s) for segment in transcript.segments),
        unwritten=tuple(shifted(speech, offset_s) for speech in transcript.unwritten),
        turns=tuple(shifted(turn, offset_s) for turn in transcript.turns),
    )


def error_row(recording: BatchRecording, kind: str, message: str, tries: int = 1) -> Json:
    """Return the row of a recording that failed by an error of some kind, and how often it has been tried."""
    error = {"type": kind, "message": valid_unicode(message), "tries": tries}
    return carried_keys(recording) | {"id": _id_of(recording), "error": error}


def report_of(rows: Iterable[Json], work_s: float) -> ShardReport:
    """Count the rows of a shard."""
    rows = [*rows]
    errors = [row["error"] for row in rows if "error" in row]
    return ShardReport(
        rows=len(rows),
        failed=dict(Counter(error["type"] for error in errors)),
        audio_s=sum(row["duration"] for row in rows if "error" not in row),
        work_s=work_s,
        first_failure=errors[0]["message"] if errors else "",
    )


def row_line(row: Json) -> str:
    """Return a row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def valid_unicode(value: Any) -> Any:
    """Return a JSON value with escapes for halves of surrogate pairs, which many readers of JSON refuse.

    Names of files that are not UTF-8 have them, ``caf\\udce9.wav``.
    """
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    if isinstance(value, list):
        return [*map(valid_unicode, value)]
    if isinstance(value, dict):
        return {valid_unicode(key): valid_unicode(item) for key, item in value.items()}
    return value


def carried_keys(recording: BatchRecording) -> Json:
    """Return the keys of a line as its row carries them.

    Those that rows have themselves, and those that are called so already, get ``input_`` before them, so that no two
    become one.
    """
    return {
        valid_unicode(_carried_name(key)): valid_unicode(value)
        for key, value in recording.keys.items()
        if key != "id"
    }


def _carried_name(key: str) -> str:
    bare = key
    while bare.startswith("input_"):
        bare = bare.removeprefix("input_")
    return f"input_{key}" if bare in RESULT_KEYS and bare != "id" else key


def _id_of(recording: BatchRecording) -> str | int:
    given = recording.keys.get("id")
    return given if isinstance(given, int) else str(valid_unicode(recording.id))


def _segment_row(segment: Segment) -> Json:
    """Return what readers of rows want of a segment."""
    whole = as_json(segment)
    return {key: whole[key] for key in _SEGMENT_KEYS if key in whole}


TRANSCRIPT_FOLDER = "transcripts"
_READING_THREADS = 16


def publish_shard(
    store: Store,
    recipe: Recipe,
    name: str,
    rows: Sequence[Json],
    work_s: float = 0.0,
    *,
    replaces: bool = False,
) -> ShardReport:
    """Publish the rows of a shard, and return their counts.

    The rows come last: a shard whose rows are there has everything else, too. Where they replace other rows, the counts
    of those are removed first, so that they are never taken for the new ones.
    """
    report = report_of(rows, work_s)
    contents: list[tuple[ShardFiles, Iterable[str]]] = [
        (REPORT, [json.dumps(asdict(report))]),
        (ROWS, map(row_line, rows)),
    ]
    if replaces:
        store.remove(REPORT.of(name))
        contents.reverse()
    if recipe.parquet:
        store.publish(PARQUET.of(name), [parquet_bytes(rows)])
    for files, content in contents:
        store.publish(files.of(name), content)
    return report


def publish_side_files(
    store: Store, recipe: Recipe, recording: BatchRecording, transcript: Transcript
) -> dict[str, str]:
    """Publish the transcript of a recording in the formats of the recipe; return the names of the files by format."""
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
    content = store.read(ROWS.of(name)) or b""
    return [json.loads(line) for line in content.split(b"\n") if line]


def read_report(store: Store, name: str) -> ShardReport:
    """Return the counts of a shard that is there; those of its rows, if their own file is lost."""
    try:
        return ShardReport(**json.loads(store.read(REPORT.of(name)) or b""))
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
    """Raise `BackendUnavailable` unless pyarrow is installed."""
    with importing("parquet", "Parquet"):
        import pyarrow.parquet  # noqa: F401


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

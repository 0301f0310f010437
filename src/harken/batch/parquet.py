"""Rows as Parquet, with pyarrow."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

from harken.batch.manifests import PATH_KEYS
from harken.batch.recordings import Json
from harken.batch.rows import RESULT_KEYS
from harken.errors import BackendUnavailable, install_hint


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


def parquet_bytes(rows: Sequence[Json]) -> bytes:
    """Return rows as a Parquet file.

    All shards have the same columns of the same types, so that they are one dataset to every reader. The keys of the
    manifest, which may be any, are the column ``input``: an object of JSON, as the row carries it.
    """
    import pyarrow
    import pyarrow.parquet

    word = pyarrow.struct(
        [
            ("start", pyarrow.float64()),
            ("end", pyarrow.float64()),
            ("word", pyarrow.string()),
            ("probability", pyarrow.float64()),
        ]
    )
    segment = pyarrow.struct(
        [
            ("start", pyarrow.float64()),
            ("end", pyarrow.float64()),
            ("text", pyarrow.string()),
            ("language", pyarrow.string()),
            ("avg_logprob", pyarrow.float64()),
            ("hallucination_score", pyarrow.float64()),
            ("words", pyarrow.list_(word)),
        ]
    )
    error = pyarrow.struct(
        [("type", pyarrow.string()), ("message", pyarrow.string()), ("tries", pyarrow.int64())]
    )
    unwritten = pyarrow.struct(
        [("start", pyarrow.float64()), ("end", pyarrow.float64()), ("reason", pyarrow.string())]
    )
    schema = pyarrow.schema(
        {
            "id": pyarrow.string(),
            "audio_filepath": pyarrow.string(),
            "offset": pyarrow.float64(),
            "text": pyarrow.string(),
            "language": pyarrow.string(),
            "language_probability": pyarrow.float64(),
            "duration": pyarrow.float64(),
            "model": pyarrow.string(),
            "segments": pyarrow.list_(segment),
            "unwritten": pyarrow.list_(unwritten),
            "files": pyarrow.map_(pyarrow.string(), pyarrow.string()),
            "error": error,
            "input": pyarrow.string(),
        }
    )
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

"""Rows as Parquet, with pyarrow."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

from harken.batch.recordings import Json
from harken.errors import BackendUnavailable


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
            "Parquet needs pyarrow, which is missing; pip install 'harken[parquet]' installs it"
        ) from error


def parquet_bytes(rows: Sequence[Json]) -> bytes:
    """Return rows as a Parquet file.

    The columns of the results have one type in all shards. Keys of the manifest are columns of texts, truth values or
    numbers (float64) where all rows agree on that, else of texts of JSON.
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
    types = {
        "id": pyarrow.string(),
        "text": pyarrow.string(),
        "language": pyarrow.string(),
        "language_probability": pyarrow.float64(),
        "duration": pyarrow.float64(),
        "model": pyarrow.string(),
        "segments": pyarrow.list_(segment),
        "unwritten": pyarrow.list_(unwritten),
        "error": error,
    }
    names = dict.fromkeys([*types, *(name for row in rows for name in row)])
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name in types:
            columns[name] = pyarrow.array(values, types[name])
        elif any(value is not None for value in values):
            columns[name] = _column_of_manifest(values)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def _column_of_manifest(values: Sequence[object]) -> object:
    """Return a column of a key of the manifest, of a type that does not depend on the shard."""
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return pyarrow.array(values, pyarrow.float64())
    if kinds in ({str}, {bool}):
        return pyarrow.array(values)
    return pyarrow.array([None if value is None else json.dumps(value, ensure_ascii=False) for value in values])

"""The rows of a batch: one JSON object a recording, with the keys of its line and its transcript, or its error."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from harken.batch.recordings import BatchRecording, Json
from harken.formats import as_json
from harken.results import Segment, Transcript, UnwrittenSpeech, Word

ItemT = TypeVar("ItemT", Segment, Word, UnwrittenSpeech)
RESULT_KEYS = frozenset(
    [
        "id",
        "text",
        "language",
        "language_probability",
        "duration",
        "model",
        "segments",
        "unwritten",
        "files",
        "error",
    ]
)
"""Keys of rows that are harken's own."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SEGMENT_KEYS = ("start", "end", "text", "language", "avg_logprob", "hallucination_score", "words")


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """The counts of a shard.

    Parameters
    ----------
    rows : int
    failed : mapping of str to int
        Number of recordings that failed, by the type of their error.
    audio_s : float
        Seconds of audio that have been transcribed.
    work_s : float
        Seconds that the worker took.
    """

    rows: int
    failed: Mapping[str, int] = field(default_factory=dict)
    audio_s: float = 0.0
    work_s: float = 0.0

    @property
    def n_failed(self) -> int:
        """Number of recordings that failed."""
        return sum(self.failed.values())


@dataclass(frozen=True, kw_only=True)
class BatchSummary:
    """The counts of a batch, those of earlier runs of the same command included.

    Attributes
    ----------
    complete : bool
        True if every recording has its row.
    recordings : int
        Recordings of the input.
    rows, failed : int
        Rows in the output folder, and those among them with an error.
    failures : dict of str to int
        Number of rows with an error, by its type.
    new_rows : int
        Rows that this run has made.
    audio_hours : float
        Audio that has been transcribed.
    work_hours : float
        Time that workers took for it, one after another.
    elapsed_s : float
        Time of this run.
    speed : float
        Audio of this run over its time: seconds a second.
    shards : int
        Files of rows.
    """

    complete: bool
    recordings: int
    rows: int
    failed: int
    failures: dict[str, int]
    new_rows: int
    audio_hours: float
    work_hours: float
    elapsed_s: float
    speed: float
    shards: int


def sum_reports(reports: Iterable[ShardReport]) -> ShardReport:
    """Return the counts of several shards."""
    failed: Counter[str] = Counter()
    rows, audio_s, work_s = 0, 0.0, 0.0
    for report in reports:
        failed.update(report.failed)
        rows, audio_s, work_s = rows + report.rows, audio_s + report.audio_s, work_s + report.work_s
    return ShardReport(rows=rows, failed=dict(failed), audio_s=audio_s, work_s=work_s)


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

    def shifted(item: ItemT) -> ItemT:
        return replace(item, start_s=item.start_s + offset_s, end_s=item.end_s + offset_s)

    return replace(
        transcript,
        segments=tuple(
            replace(shifted(segment), words=tuple(map(shifted, segment.words)))
            for segment in transcript.segments
        ),
        unwritten=tuple(map(shifted, transcript.unwritten)),
    )


def error_row(recording: BatchRecording, kind: str, message: str, tries: int = 1) -> Json:
    """Return the row of a recording that failed.

    Parameters
    ----------
    recording : BatchRecording
    kind : str
        Type of the error.
    message : str
    tries : int
        Times that it has been tried.
    """
    result = {
        "id": _id_of(recording),
        "error": {"type": kind, "message": valid_unicode(message), "tries": tries},
    }
    return carried_keys(recording) | result


def report_of(rows: Iterable[Json], work_s: float) -> ShardReport:
    """Count the rows of a shard."""
    rows = [*rows]
    return ShardReport(
        rows=len(rows),
        failed=dict(Counter(row["error"]["type"] for row in rows if "error" in row)),
        audio_s=sum(row["duration"] for row in rows if "error" not in row),
        work_s=work_s,
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
    return {key: whole[key] for key in _SEGMENT_KEYS if key != "words" or segment.words}

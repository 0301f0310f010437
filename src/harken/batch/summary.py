"""The summary of a batch: recordings, hours, speed, and failures by their kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from harken.batch.rows import ShardReport
from harken.batch.store import Store

SUMMARY_FILE = "_summary.json"


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

    def publish(self, store: Store) -> None:
        """Write the summary to the output folder.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        store.publish(SUMMARY_FILE, [json.dumps(asdict(self), indent=2) + "\n"])


def sum_reports(reports: Iterable[ShardReport]) -> ShardReport:
    """Return the counts of several shards."""
    failed: Counter[str] = Counter()
    rows, audio_s, work_s = 0, 0.0, 0.0
    for report in reports:
        failed.update(report.failed)
        rows, audio_s, work_s = rows + report.rows, audio_s + report.audio_s, work_s + report.work_s
    return ShardReport(rows=rows, failed=dict(failed), audio_s=audio_s, work_s=work_s)

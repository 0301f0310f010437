"""Transcription of archives: shards of recordings, over workers in this process, on this machine or in a cluster.

Every shard has one file of rows, which is whole or absent, so the same command goes on where an earlier one ended.
"""

from harken.batch.driver import BatchState
from harken.batch.inputs import read_recordings
from harken.batch.run import BatchOptions, BatchSummary, plan_batch, run_batch

__all__ = ["BatchOptions", "BatchState", "BatchSummary", "plan_batch", "read_recordings", "run_batch"]

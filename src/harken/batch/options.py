"""Options of a batch. The command line derives its flags from these fields, so each is declared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harken.errors import OptionError
from harken.formats import FORMATS
from harken.option_types import check_types
from harken.transcribe.options import option

_workers = partial(option, "Workers")
_output = partial(option, "Output")

BATCH_SIZE = 8
"""Windows of the recordings of a shard that are decoded together, unless another number is asked for."""
MAX_WORKERS = 100_000
SIDE_FORMATS = tuple(name for name in FORMATS if name not in ("json", "rttm"))
"""Formats of the files beside the rows, which have all of json themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The options of a batch.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    workers: int = _workers(
        0, "Processes on this machine, or actors of the cluster; 0 works in this process, or fills the cluster."
    )
    ray: str | None = _workers(
        None, "Address of a Ray cluster, or auto for the one that this machine is part of."
    )
    shard_minutes: float = _workers(30.0, "Audio of a shard, the unit of work that is whole or absent.")
    tries: int = _workers(3, "Times that a worker may be lost with a recording before it is given up.")
    time_limit: float = _workers(20.0, "Most seconds of work for a second of audio, and two minutes more.")
    moved: bool = _workers(False, "Take recordings of the same names in another input for those of before.")
    retry_failed: bool = _workers(False, "Transcribe recordings that have failed once more.")
    formats: tuple[str, ...] = _output((), f"Files beside the rows: {', '.join(SIDE_FORMATS)}.")
    parquet: bool = _output(False, "Write the rows of each shard as a Parquet file, too.")

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.workers <= MAX_WORKERS:
            raise OptionError("workers", self.workers, f"an integer from 0 to {MAX_WORKERS}")
        if not 0.01 <= self.shard_minutes <= 10_000:
            raise OptionError("shard_minutes", self.shard_minutes, "a number from 0.01 to 10000")
        if not 1 <= self.tries <= 100:
            raise OptionError("tries", self.tries, "an integer from 1 to 100")
        if not 0.1 <= self.time_limit <= 10_000:
            raise OptionError("time_limit", self.time_limit, "a number from 0.1 to 10000")
        for name in self.formats:
            if name not in SIDE_FORMATS:
                raise OptionError("formats", name, f"one of {', '.join(SIDE_FORMATS)}")

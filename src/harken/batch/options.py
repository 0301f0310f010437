"""Options of a batch. The command line derives its flags from these fields, so each is declared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harken.formats import FORMATS
from harken.option_types import check, option

_workers = partial(option, section="Workers")

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
        0,
        "Processes on this machine, or actors of the cluster; 0 works in this process, or fills the cluster.",
        low=0,
        high=MAX_WORKERS,
    )
    ray: str | None = _workers(
        None, "Address of a Ray cluster, or auto for the one that this machine is part of."
    )
    shard_minutes: float = _workers(
        30.0, "Audio of a shard, the unit of work that is whole or absent.", low=0.01, high=10_000
    )
    tries: int = _workers(
        3, "Times that a worker may be lost with a recording before it is given up.", low=1, high=100
    )
    time_limit: float = _workers(
        20.0, "Most seconds of work for a second of audio, and two minutes more.", low=0.1, high=10_000
    )
    moved: bool = _workers(False, "Take recordings of the same names in another input for those of before.")
    retry_failed: bool = _workers(False, "Transcribe recordings that have failed once more.")
    formats: tuple[str, ...] = option(
        (), f"Files beside the rows: {', '.join(SIDE_FORMATS)}.", choices=SIDE_FORMATS
    )
    parquet: bool = option(False, "Write the rows of each shard as a Parquet file, too.")

    def __post_init__(self) -> None:
        check(self)

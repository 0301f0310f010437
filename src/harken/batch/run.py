"""A batch from its input to its summary: options, read, plan, transcribe what is not there yet, count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

from harken.api import load as harken_load
from harken.backend_factory import AUTO, NGRAM, NO_ASSISTANT
from harken.batch.driver import BatchState, Driver
from harken.batch.inputs import BatchRecording, Note, read_recordings
from harken.batch.locations import absolute
from harken.batch.plan import (
    Plan,
    Recipe,
    Shard,
    estimate_durations,
    make_plan,
    remove_unplanned,
    weights_digest,
)
from harken.batch.rows import ShardReport, read_reports, read_rows, require_pyarrow, sum_reports
from harken.batch.store import Store
from harken.batch.worker import WorkerSettings
from harken.batch.workers import InProcessWorkers, ProcessWorkers, Workers
from harken.checkpoints import NO_ADAPTER
from harken.compiled_library import usable_processors
from harken.errors import HarkenError, OptionError, PlanError
from harken.formats import FORMATS, Layout
from harken.keywords import options_or_default
from harken.option_types import check, option
from harken.transcribe import TranscribeOptions

_workers = partial(option, section="Workers")

MAX_WORKERS = 100_000
SIDE_FORMATS = tuple(name for name in FORMATS if name != "json")
"""Formats of the files beside the rows, which have all of json themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The options of a batch; the command line derives its flags from these fields, so each is declared once.

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
        20.0,
        "Most seconds of work for a second of audio, times --batch-size, and two minutes more.",
        low=0.1,
        high=10_000,
    )
    moved: bool = _workers(False, "Take recordings of the same names in another input for those of before.")
    retry_failed: bool = _workers(False, "Transcribe recordings that have failed once more.")
    formats: tuple[str, ...] = option(
        (), f"Files beside the rows: {', '.join(SIDE_FORMATS)}.", choices=SIDE_FORMATS
    )
    parquet: bool = option(False, "Write the rows of each shard as a Parquet file, too.")

    def __post_init__(self) -> None:
        check(self)


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
    first_failure : str
        The message of one of these errors; it names the recording.
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
    first_failure: str
    new_rows: int
    audio_hours: float
    work_hours: float
    elapsed_s: float
    speed: float
    shards: int


SUMMARY_FILE = "_summary.json"
PATHS = {"model", "assistant", "adapter", "cache", "voices"}
"""Arguments of loading that may be paths, which workers in other folders must find."""
NO_PATHS = {AUTO, NGRAM, NO_ASSISTANT, NO_ADAPTER}
"""Values of them that are words."""


def plan_batch(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    options: BatchOptions | None = None,
    transcribe_options: TranscribeOptions | None = None,
    *,
    load: Mapping[str, Any] | None = None,
    speakers: Mapping[str, Any] | None = None,
    layout: Layout | None = None,
    note: Note = lambda text: None,
) -> Plan:
    """Return the plan of a batch, and write nothing.

    Parameters and errors are those of `run_batch`.
    """
    store = Store(os.fspath(folder))
    return _prepare(store, source, options, transcribe_options, load, speakers, layout, note, write=False).plan


def run_batch(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    options: BatchOptions | None = None,
    transcribe_options: TranscribeOptions | None = None,
    *,
    load: Mapping[str, Any] | None = None,
    speakers: Mapping[str, Any] | None = None,
    layout: Layout | None = None,
    on_state: Callable[[BatchState], None] = lambda state: None,
    note: Note = lambda text: None,
) -> BatchSummary:
    """Transcribe many recordings into a folder; rows that are there are not made again.

    Parameters
    ----------
    source : path or URL
        As for `read_recordings`.
    folder : path or URL
        Output folder, which is created. It gets ``shards/*.jsonl`` with a row for each recording, and what the options
        ask for beside them.
    options : BatchOptions, optional
    transcribe_options : TranscribeOptions, optional
        By default windows of eight recordings are decoded together, which changes no text.
    load : mapping, optional
        Arguments of `harken.load`, the model among them.
    speakers : mapping, optional
        Arguments of `harken.load_diarizer`, to tell speakers apart; ``voices`` may name a file of known voices.
    layout : Layout, optional
        Layout of files beside the rows.
    on_state : callable, optional
        Called about twice a second with the state.
    note : callable, optional
        Called with lines for people: repeated lines, lost workers, recordings that were given up.

    Returns
    -------
    BatchSummary
        Also in ``_summary.json``.

    Raises
    ------
    PlanError
        If the input cannot be read, the folder has rows of other options, or another driver works on it.
    OutputError
        If rows cannot be written.
    CheckpointError, OptionError, BackendUnavailable
        As `harken.load`.
    WorkerError
        If workers end before they have loaded the model.

    Examples
    --------
    >>> from harken.batch import BatchOptions, run_batch
    >>> summary = run_batch("talks", "out", BatchOptions(workers=2), load={"model": "tiny.en"})
    >>> print(summary.rows, summary.failed)
    """
    began_s = time.monotonic()
    options = options_or_default("options", options, BatchOptions)
    if options.parquet:
        require_pyarrow()
    store = Store(os.fspath(folder))
    with store.locked():
        batch = _prepare(store, source, options, transcribe_options, load, speakers, layout, note, write=True)
        batch.reports = read_reports(store, batch.plan.finished)
        try:
            batch.run(on_state, note)
        except BaseException:
            with suppress(HarkenError):
                batch.publish_summary(began_s)
            raise
        return batch.publish_summary(began_s)


@dataclass(kw_only=True)
class _Batch:
    """A run of a batch, with the counts of each shard that was there before, and of those that it has done.

    Of these some are `retries` of the failed rows of a shard.
    """

    recordings: list[BatchRecording]
    recipe: Recipe
    store: Store
    options: BatchOptions
    plan: Plan
    reports: dict[str, ShardReport] = field(default_factory=dict)
    new: dict[str, ShardReport] = field(default_factory=dict)
    retries: dict[str, Shard] = field(default_factory=dict)

    def run(self, on_state: Callable[[BatchState], None], note: Note) -> None:
        """Do what is left to do."""
        options = self.options
        if options.retry_failed:
            self.retries = {shard.name: shard for shard in self._failed_shards()}
        shards = [*self.plan.unfinished, *self.retries.values()]
        if not shards:
            return
        before = [
            replace(each, failed={}) if name in self.retries else each for name, each in self.reports.items()
        ]
        with closing(_make_workers(self, len(shards))) as workers:
            driver = Driver(
                shards,
                workers,
                self.store,
                self.recipe,
                tries=options.tries,
                time_limit=options.time_limit,
                on_state=on_state,
                note=note,
                before=sum_reports(before),
            )
            self.new = driver.reports
            driver.run()
        remove_unplanned(self.store, self.plan.finished.keys() | self.new.keys())

    def _failed_shards(self) -> Iterator[Shard]:
        """Yield the recordings that are still listed and whose rows have errors, by the shards of these rows."""
        by_digest = {recording.digest: recording for recording in self.recordings}
        for name, digests in self.plan.finished.items():
            if self.reports[name].n_failed:
                rows = zip(digests, read_rows(self.store, name), strict=True)
                failed = tuple(by_digest[each] for each, row in rows if "error" in row and each in by_digest)
                estimate_durations(failed)
                if failed:
                    yield Shard(failed, self.recipe.digest, retry=name)

    def publish_summary(self, began_s: float) -> BatchSummary:
        """Count all rows that are there, write the counts to the output folder, and return them."""
        all_reports = self.reports | self.new
        total, new = sum_reports(all_reports.values()), sum_reports(self.new.values())
        retried = self.new.keys() & self.reports.keys()
        kept = sum_reports(self.reports[name] for name in retried)
        elapsed_s = time.monotonic() - began_s
        summary = BatchSummary(
            complete=total.rows - self.plan.n_stale == len(self.recordings),
            recordings=len(self.recordings),
            rows=total.rows,
            failed=total.n_failed,
            failures={**total.failed},
            first_failure=total.first_failure,
            new_rows=new.rows - kept.rows + sum(len(self.retries[name].recordings) for name in retried),
            audio_hours=total.audio_s / 3600,
            work_hours=total.work_s / 3600,
            elapsed_s=elapsed_s,
            speed=(new.audio_s - kept.audio_s) / elapsed_s,
            shards=len(all_reports),
        )
        self.store.publish(SUMMARY_FILE, [json.dumps(asdict(summary), indent=2) + "\n"])
        return summary


def _prepare(
    store: Store,
    source: str | os.PathLike[str],
    options: BatchOptions | None,
    transcribe_options: TranscribeOptions | None,
    load: Mapping[str, Any] | None,
    speakers: Mapping[str, Any] | None,
    layout: Layout | None,
    note: Note,
    *,
    write: bool,
) -> _Batch:
    """Read the input, and plan."""
    options = options_or_default("options", options, BatchOptions)
    transcribe_options = options_or_default("transcribe_options", transcribe_options, TranscribeOptions)
    layout = options_or_default("layout", layout, Layout)
    if layout.needs_words and not transcribe_options.word_timestamps:
        raise OptionError("word_timestamps", False, "True with a layout that is made of words")
    if "words.tsv" in options.formats and not transcribe_options.word_timestamps:
        raise OptionError("word_timestamps", False, "True with the format words.tsv")
    if "rttm" in options.formats and speakers is None and transcribe_options.channels != "apart":
        raise OptionError("formats", "rttm", "it only where speakers or channels are told apart")
    if os.path.realpath(source) == os.path.realpath(os.path.join(store.folder, SUMMARY_FILE)):
        raise PlanError(f"{os.fspath(source)}: the batch writes its summary there; allowed is another manifest")
    if unknown := {*(load or {})} - signature(harken_load).parameters.keys():
        raise OptionError("load", min(unknown), "arguments of harken.load")
    recordings = read_recordings(os.fspath(source), note)
    load = {"model": "tiny.en", **(load or {})}
    name = os.fspath(load["model"])
    load = _arguments_with_whole_paths(load)
    recipe = Recipe(
        name=name,
        load=load,
        weights=weights_digest(load),
        options=transcribe_options,
        layout=layout,
        formats=options.formats,
        parquet=options.parquet,
        speakers=speakers if speakers is None else _arguments_with_whole_paths(speakers),
    )
    plan = make_plan(
        recordings,
        recipe,
        store,
        absolute(os.fspath(source)),
        moved=options.moved,
        shard_s=60 * options.shard_minutes,
        workers=_expected_workers(options, load),
        write=write,
    )
    if plan.n_stale:
        note(f"{store.folder}: rows of recordings that {source} does not list any more: {plan.n_stale}")
    return _Batch(recordings=recordings, recipe=recipe, store=store, options=options, plan=plan)


def _expected_workers(options: BatchOptions, load: Mapping[str, Any]) -> int:
    """Return the number of workers among which the plan divides the work."""
    if options.ray is None or options.workers:
        return max(options.workers, 1)
    from harken.batch.ray_cluster import room_for_workers

    return room_for_workers(options.ray, load.get("threads"))[1]


def _arguments_with_whole_paths(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of loading, those that are paths absolute."""
    return {name: _with_whole_paths(value) if name in PATHS else value for name, value in arguments.items()}


def _with_whole_paths(value: Any) -> Any:
    """Return the absolute path of a value that is one, or of each item."""
    if isinstance(value, tuple | list):
        return tuple(map(_with_whole_paths, value))
    is_path = value is not None and value not in NO_PATHS and os.path.exists(value)
    return os.path.abspath(value) if is_path else value


def _make_workers(batch: _Batch, n_shards: int) -> Workers:
    """Start workers where the options want them, no more than there are shards."""
    options, threads = batch.options, batch.recipe.load.get("threads")
    settings = WorkerSettings(
        recipe=batch.recipe, folder=batch.store.folder, threads=threads, time_limit=options.time_limit
    )
    if options.ray is not None:
        from harken.batch.ray_cluster import RayWorkers, room_for_workers

        threads, room = room_for_workers(options.ray, threads)
        return RayWorkers(
            replace(settings, threads=threads), options.ray, min(options.workers or room, n_shards)
        )
    if not options.workers:
        return InProcessWorkers(settings)
    n_processes = min(options.workers, n_shards)
    threads = threads or max(usable_processors() // n_processes, 1)
    return ProcessWorkers(replace(settings, threads=threads), n_processes)

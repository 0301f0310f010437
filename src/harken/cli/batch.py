"""``harken batch``: transcribes archives into rows, over workers of this machine or of a cluster."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import click

from harken.batch import BatchOptions, BatchState, BatchSummary, plan_batch, run_batch
from harken.batch.plan import Plan
from harken.cli.exits import SOME_FAILED
from harken.cli.model_options import batch_speaker_options, model_options, model_params, speaker_params
from harken.cli.options import (
    Command,
    FilePath,
    dataclass_options,
    decoding_options,
    is_given,
    layout_options,
    list_option,
    parse_text,
    single_option,
)
from harken.cli.signals import saving_on_stop
from harken.cli.terminal import Screen, format_table, pluralize, write_stderr, write_stdout
from harken.formats import Layout
from harken.option_types import options_from
from harken.transcribe import TranscribeOptions

LINE_EVERY_S = 30.0


class BatchScreen(Screen):
    """The progress on standard error: a bar, or without a terminal a line now and then; nothing if it is quiet."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(not quiet, counts=True)
        self._state: BatchState | None = None
        self._next_line_s = perf_counter() + LINE_EVERY_S

    def show(self, state: BatchState) -> None:
        """Show the state."""
        self._state = state
        text = describe_state(state)
        if self.has_bar:
            self.update("", text, state.rows, state.all_rows)
        elif self.show_progress and perf_counter() >= self._next_line_s:
            self._next_line_s = perf_counter() + LINE_EVERY_S
            write_stderr(f"harken: {state.rows} of {state.all_rows} recordings, {text}")

    def note(self, text: str) -> None:
        """Show a line, above the bar."""
        if self.show_progress:
            self.write_stderr(f"harken: {text}")

    def describe_stop(self, message: str) -> str:
        """Return the message of a signal with what is done; rows that are not published yet are not."""
        if not self._state:
            return f"{message}; the same command goes on"
        done = f"{self._state.published} of {self._state.all_rows} recordings are done"
        return f"{message}; {done}, and the same command goes on from there"


def describe_state(state: BatchState) -> str:
    """Return the workers, the speed, the time left and the failures, in a line."""
    parts = [pluralize(state.workers, "worker")]
    if state.speed:
        parts.append(f"{state.speed:.1f} times real time")
        if state.left_s:
            parts.append(f"{format_duration(state.left_s / state.speed)} left")
    if state.failed:
        parts.append(f"{state.failed} failed")
    return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Format a duration in the two units that matter, such as ``3 h 20 min`` or ``41 s``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    shown = next((index for index, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for count, unit in units[shown : shown + 2])


output_option = partial(single_option, section="Output")


@click.command("batch", cls=Command)
@click.argument("manifest", metavar="MANIFEST", type=FilePath())
@click.argument("out", metavar="OUT", type=FilePath())
@list_option(
    *("-f", "--format", "formats"),
    section="Output",
    parse_item=parse_text,
    metavar="FORMAT,...",
    help="Files beside the rows, such as srt, vtt or html.",
)
@output_option("--dry-run", is_flag=True, help="Show the plan, and do nothing.")
@output_option("-q", "--quiet", is_flag=True, help="Print only errors.")
@dataclass_options(BatchOptions, exclude=("formats",))
@layout_options
@model_options
@batch_speaker_options
@decoding_options
def command(manifest: str, out: str, **params: Any) -> int:
    """Transcribe an archive into rows of JSON.

    MANIFEST is a file of JSON lines with audio_filepath, a folder, a pattern such as 'talks/**/*.mp3', a folder with
    metadata.jsonl, or .tar archives of webdataset. OUT is a folder. Both may be URLs, such as s3://bucket/talks.

    OUT gets shards of rows, each whole or absent: the same command goes on where an earlier one ended, however it did.
    A recording that fails is a row with its error.
    """
    options = options_from(BatchOptions, params)
    if not is_given("word_timestamps"):
        params["word_timestamps"] = True
    transcribe_options = options_from(TranscribeOptions, params)
    speakers = speaker_params(params)
    if speakers is not None and params["voices"]:
        speakers["voices"] = params["voices"]
    settings: dict[str, Any] = {
        "load": model_params(params),
        "speakers": speakers,
        "layout": options_from(Layout, params),
    }
    with BatchScreen(quiet=params["quiet"]) as screen:
        settings["note"] = screen.note
        if params["dry_run"]:
            write_stdout(_plan_text(plan_batch(manifest, out, options, transcribe_options, **settings)))
            return 0
        with saving_on_stop(screen.describe_stop):
            summary = run_batch(manifest, out, options, transcribe_options, on_state=screen.show, **settings)
        screen.note(_summary_text(summary, out, retried=options.retry_failed))
    return 0 if summary.complete and not summary.failed else SOME_FAILED


def _plan_text(plan: Plan) -> str:
    """Return the shards of a plan as a table, and how many are there."""
    rows = [
        (shard.name, pluralize(len(shard.recordings), "recording"), format_duration(shard.seconds))
        for shard in plan.unfinished
    ]
    total = format_duration(sum(shard.seconds for shard in plan.unfinished))
    table = format_table(rows) if rows else ""
    return f"{table}{pluralize(len(rows), 'shard')} of {total} to do, {len(plan.finished)} done\n"


def _summary_text(summary: BatchSummary, out: str, *, retried: bool) -> str:
    """Return what was done, in a line or a few, and what would try failed rows once more, if they were not retried."""
    new = f"{summary.new_rows} new in {format_duration(summary.elapsed_s)}, {summary.speed:.1f} times real time"
    lines = [
        f"{pluralize(summary.rows, 'row')} in {pluralize(summary.shards, 'shard')} in {out}, "
        f"{summary.audio_hours:.2f} h of audio; {new if summary.new_rows else 'nothing was left to do'}"
    ]
    if summary.failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(summary.failures.items()))
        lines.append(
            f"{pluralize(summary.failed, 'row')} failed: {kinds}, such as {summary.first_failure}"
            f"{'' if retried else '; --retry-failed tries them once more'}"
        )
    return "\n".join(lines)

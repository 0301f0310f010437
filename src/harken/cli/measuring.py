"""Parts of ``bench`` and ``eval``: options, one loop over recordings, its end by a signal too, tables of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import click

from harken.api import Recognizer
from harken.cli.exits import SOME_FAILED
from harken.cli.options import ResultPath, single_option
from harken.cli.signals import deferring_stop, saving_on_stop
from harken.cli.terminal import Screen
from harken.evaluation.error_rate import ErrorRate
from harken.evaluation.latency import Percentiles
from harken.evaluation.scoring import Failure
from harken.files import open_atomic
from harken.formats import dump_json

limit_option = partial(
    single_option,
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Use only N recordings of each manifest, spread evenly over it.",
)
json_option = partial(
    single_option,
    *("--json", "json_file"),
    metavar="FILE",
    type=ResultPath(),
    help="Write all results to a file as one JSON object.",
)

ResultT = TypeVar("ResultT")
ColumnT = TypeVar("ColumnT")
Figure = float | ErrorRate | Percentiles | None
NOTHING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of a measurement, so far or of all: the number of recordings, and each form of the report."""

    recordings: int
    text: str
    as_json: dict[str, Any]
    page: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[ResultT]):
    """A measurement of recordings, one after another."""

    # Result of each recording, or of several; or a failure of one that cannot be read.
    outcomes: Iterable[ResultT | Failure]
    # Makes the report of results and failures; called once, with whether all recordings were done.
    report: Callable[[Sequence[ResultT], Sequence[Failure], bool], Report]
    recordings: int  # of all
    durations_s: Sequence[float | None]  # of the recordings
    measured_s: Callable[[ResultT], float]  # returns the length of what a result is of
    label: str = ""  # of the progress; by default the number of recordings
    # Returns the text that is printed as soon as a result is known.
    shown: Callable[[ResultT], str] = lambda result: ""
    saved: str = ""  # addition to the message of a stop


def measure(
    screen: Screen,
    start: Callable[[], Measurement[ResultT]],
    json_file: str | None,
    page_file: str | None = None,
) -> int:
    """Measure all recordings, report, and return the exit code; a signal ends it with a report of what was measured.

    Parameters
    ----------
    screen : Screen
    start : callable
        Loads what is needed and returns the measurement; called when the files have proved to be writable.
    json_file, page_file : str or None
        Files for the report as JSON and as html.
    """
    with ExitStack() as files, deferring_stop() as begin_last_part:
        # Opened first, so that a file that cannot be written fails before the work.
        write_json, write_page = (
            files.enter_context(open_atomic(file)) if file else None for file in (json_file, page_file)
        )
        measurement = start()
        results: list[ResultT] = []
        failures: list[Failure] = []

        def finish(*, complete: bool) -> Report:
            report = measurement.report(results, failures, complete)
            if write_json:
                write_json(dump_json(report.as_json, indent=1) + "\n")
            if write_page:
                write_page(report.page)
            files.close()
            if report.recordings:
                screen.write_stdout(report.text)
            return report

        def save(message: str) -> str:
            done = finish(complete=False).recordings
            return f"{message} after {done} of {measurement.recordings} recordings{measurement.saved}"

        label = measurement.label or f"{measurement.recordings} recordings"
        progress = screen.track_all(label, measurement.durations_s)
        measured_s = 0.0
        with saving_on_stop(save):
            for outcome in measurement.outcomes:
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                    screen.write_stderr(f"harken: {outcome.reason}")
                else:
                    results.append(outcome)
                    measured_s += measurement.measured_s(outcome)
                    screen.write_stdout(measurement.shown(outcome))
                progress(measured_s, False)
            begin_last_part()
        finish(complete=True)
    return SOME_FAILED if failures else 0


@dataclass(frozen=True, slots=True)
class Row(Generic[ColumnT]):
    """A row of a table of figures."""

    label: str
    figure: Callable[[ColumnT], Figure]  # returns the figure of a column, or None if it has none
    digits: int = 2  # after the decimal point
    only: str | None = None  # name of the only column that it has a figure in

    def cell(self, column: ColumnT) -> str:
        """Return the figure of a column as text."""
        match self.figure(column):
            case None:
                return NOTHING
            case Percentiles(p50=p50, p95=p95, max=maximum):
                return " / ".join(f"{number:.{self.digits}f}" for number in (p50, p95, maximum))
            case ErrorRate(rate=rate):
                return f"{100 * rate:.{self.digits}f}"
            case number:
                return f"{number:.{self.digits}f}"


def table_rows(rows: Iterable[Row[ColumnT]], columns: Mapping[str, ColumnT]) -> Iterator[tuple[str, ...]]:
    """Yield the label and the cells of each row that has a figure."""
    for row in rows:
        cells = [row.cell(column) if row.only in (None, name) else NOTHING for name, column in columns.items()]
        if any(cell != NOTHING for cell in cells):
            yield (row.label, *cells)


def format_heading(
    recognizer: Recognizer, measured: str, audio_s: float, repeats: int, drafts: str | None = None
) -> str:
    """Format the engine, the source of drafts if there is one, and what was measured."""
    drafting = f"drafts: {drafts}\n" if drafts else ""
    passes = "" if repeats == 1 else f", median of {repeats} passes"
    engine = f"{recognizer.model}, {recognizer.backend.capabilities.detail}"
    return f"{engine}\n{drafting}{measured}: {audio_s:.1f} s of audio{passes}\n"


def format_percent(rate: float | None) -> str:
    """Format a share in percent."""
    return NOTHING if rate is None else f"{100 * rate:.2f}"


def format_rate(rate: ErrorRate) -> tuple[str, str]:
    """Format an error rate and its interval, in percent."""
    interval = rate.confidence_interval
    return format_percent(rate.rate), " to ".join(map(format_percent, interval)) if interval else NOTHING


def format_speed(audio_s: float, wall_s: float) -> str:
    """Format the time that some audio took; empty if it is unknown."""
    return f" in {wall_s:.1f} s, {audio_s / wall_s:.1f} times real time" if wall_s else ""

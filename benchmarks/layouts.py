"""The tables of README.md and docs/: the results that each shows, and its columns.

A table is named in a page by ``<!-- table: NAME -->``; `tables` fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from results import Row

Cell = Callable[[Row], str]
MISSING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    heading : str
    cell : callable
        Returns the text of a row's cell.
    right : bool
        True aligns the column to the right, as numbers are.
    """

    heading: str
    cell: Cell
    right: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the docs.

    Parameters
    ----------
    results : tuple of str
        Results whose rows it shows, one below the other.
    columns : tuple of Column
    rows : callable
        Returns True for the rows to show.
    bold : callable
        Returns True for the row with harken's choice among alternatives; its first cell is in bold.
    versions : bool
        True adds versions and command to the machine, date and commit below the table.
    """

    results: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: Callable[[Row], bool] = lambda row: True
    bold: Callable[[Row], bool] = lambda row: False
    versions: bool = True


def text(heading: str, key: str) -> Column:
    """Make a column of words."""
    return Column(heading=heading, cell=lambda row: str(row[key]), right=False)


def number(heading: str, key: str, digits: int = 0, *, sign: str = "") -> Column:
    """Make a column of numbers; `sign` is ``+`` for differences."""
    return Column(heading=heading, cell=lambda row: _number(row[key], f"{sign},.{digits}f"))


def numbers(
    heading: str, keys: tuple[str, ...], digits: int = 0, *, sign: str = "", between: str = ", "
) -> Column:
    """Make a column with several numbers in a cell."""
    return Column(
        heading=heading,
        cell=lambda row: between.join(_number(row[key], f"{sign},.{digits}f") for key in keys),
    )


def interval(heading: str, key: str) -> Column:
    """Make a column of the 95 % intervals of differences (``KEY, low`` to ``KEY, high``)."""
    return numbers(heading, (f"{key}, low", f"{key}, high"), 2, sign="+", between=" to ")


def spread(heading: str, key: str, digits: int) -> Column:
    """Make a column of medians, each with the range of the turns (``KEY_low`` to ``KEY_high``) unless it is a point."""

    def cell(row: Row) -> str:
        middle, low, high = (f"{row[name]:.{digits}f}" for name in (key, f"{key}_low", f"{key}_high"))
        return middle if low == high else f"{middle} ({low} to {high})"

    return Column(heading=heading, cell=cell)


def _number(value: float | None, form: str) -> str:
    return MISSING if value is None else format(value, form)


_ERRORS = (
    text("recordings", "group"),
    number("number", "recordings"),
    number("beam", "beam_size"),
    text("language", "language"),
    number("harken, %", "harken", 2),
    number("faster-whisper, %", "faster-whisper", 2),
    number("difference", "to faster-whisper", 2, sign="+"),
    interval("95 % interval", "to faster-whisper"),
)
_LIVE = (
    text("session", "session"),
    number("wait for a word shown, at most, s", "wait_shown_s", 2),
    numbers("shown, s: median, 95 %", ("shown_median_s", "shown_95_s"), 2),
    number("wait for a word committed, at most, s", "wait_committed_s", 2),
    numbers("committed, s: median, 95 %", ("committed_median_s", "committed_95_s"), 2),
    number("errors, %", "error_percent", 2),
    number("of the offline pass", "offline_error_percent", 2),
    number("CPU seconds a second of audio", "cpu_factor", 3),
    number("retractions", "retractions"),
    number("flicker", "flicker", 2),
)
_STEPS = (
    text("model", "model"),
    number("positions", "positions"),
    number("rows", "rows"),
    number("tokens", "tokens"),
    number("ONNX Runtime, ms", "onnx_least_ms", 2),
    numbers("25 %, median", ("onnx_quarter_ms", "onnx_median_ms"), 2),
    number("native, ms", "native_least_ms", 2),
    numbers("25 %, median", ("native_quarter_ms", "native_median_ms"), 2),
    number("native over ONNX Runtime", "native_over_onnx", 2),
    number("times faster", "times_faster", 2),
    numbers("over one token: ONNX Runtime, native", ("onnx_over_one", "native_over_one"), 2),
    number("read, GB/s", "read_gb_a_second", 1),
    number("floor, ms", "floor_ms", 2),
    number("native over floor", "times_floor", 2),
    numbers(
        "rules and choice, ms: ONNX Runtime, native", ("onnx_choice_least_ms", "native_choice_least_ms"), 3
    ),
)

TABLES = {
    "engines": Table(
        results=("engines",),
        columns=(
            text("engine", "engine"),
            text("set", "set"),
            number("times real time", "times_real_time", 1),
            spread("time over harken's", "ratio", 2),
            number("errors, %", "error_percent", 2),
            number("peak memory, MB", "peak_mb"),
        ),
        versions=False,
    ),
    "engines-long": Table(
        results=("engines-long",),
        columns=(
            text("set", "set"),
            text("engine", "engine"),
            number("minutes", "minutes", 1),
            number("times real time", "times_real_time", 1),
            spread("time over harken's", "ratio", 2),
            number("CPU seconds", "cpu_s", 1),
            number("errors, %", "error_percent", 2),
            number("peak memory, MB", "peak_mb"),
            number("loading, s", "load_s", 2),
        ),
    ),
    "errors-base": Table(results=("errors-base",), columns=_ERRORS),
    "errors-base-beam": Table(results=("errors-base-beam",), columns=_ERRORS),
    "errors-base-detected": Table(
        results=("errors-base-detected",),
        columns=(
            *_ERRORS,
            numbers(
                "language right, %: harken, faster-whisper",
                ("harken, language right", "faster-whisper, language right"),
                1,
            ),
        ),
        versions=False,
    ),
    "errors-tiny-en": Table(
        results=("errors-tiny-en",),
        columns=(
            *_ERRORS,
            number("harken with whole windows, %", "harken exact", 2),
            interval("95 % interval of the difference", "to harken exact"),
        ),
    ),
    "reliability": Table(
        results=("reliability",),
        columns=(
            text("model", "model"),
            numbers("probability", ("from", "to"), 2, between=" to "),
            number("recordings", "recordings"),
            number("mean probability, %", "probability_percent", 1),
            number("right, %", "right_percent", 1),
        ),
    ),
    "parity": Table(
        results=("parity",),
        columns=(
            text("search", "search"),
            text("set", "set"),
            number("recordings", "recordings"),
            number("with the same tokens", "equal"),
        ),
    ),
    "memory": Table(
        results=("memory",),
        columns=(
            text("recording", "recording"),
            number("peak memory, MB", "peak_mb"),
            number("lines of text", "lines"),
            number("seconds", "seconds", 1),
            number("times real time", "times_real_time", 1),
        ),
    ),
    "start-up": Table(
        results=("start-up",),
        columns=(
            text("step", "step"),
            number("median, ms", "median_ms"),
            number("least, ms", "least_ms"),
            number("most, ms", "most_ms"),
        ),
    ),
    "breakdown": Table(
        results=("breakdown",),
        columns=(
            text("stage", "stage"),
            number("calls", "calls"),
            number("ms a call", "call_ms", 2),
            number("seconds", "seconds", 3),
            number("share, %", "share_percent", 1),
            number("lower bound, s", "bound_s", 3),
        ),
    ),
    "steps": Table(results=("steps", "steps-large"), columns=_STEPS),
    "busy": Table(
        results=("busy",),
        columns=(
            number("busy processes", "busy"),
            text("engine", "engine"),
            number("seconds", "seconds", 2),
            spread("slowdown", "slowdown", 2),
            spread("over that of the first engine", "ratio", 2),
        ),
    ),
    "larger": Table(
        results=("larger-base", "larger-small", "larger-turbo"),
        columns=(
            text("model", "model"),
            text("weights", "weights"),
            number("beam", "beam"),
            text("engine", "engine"),
            number("minutes", "minutes", 1),
            number("seconds a minute", "seconds_a_minute", 2),
            spread("time over that of the first engine", "ratio", 2),
            number("peak memory, MB", "peak_mb"),
        ),
    ),
    "speculation": Table(
        results=("speculation",),
        columns=(
            text("model, assistant", "pair"),
            text("set", "set"),
            number("recordings", "recordings"),
            number("batch", "batch"),
            numbers("decoding without and with drafts, s", ("plain_decode_s", "decode_s"), 1),
            number("times faster", "decode_ratio", 2),
            numbers("end to end, s", ("plain_wall_s", "wall_s"), 1),
            number("times faster", "wall_ratio", 2),
            number("tokens a pass", "tokens_per_forward", 2),
            number("accepted, %", "acceptance_percent", 1),
            numbers("errors, %", ("plain_error_percent", "error_percent"), 2),
            number("recordings that differ", "differing"),
            number("near ties", "near_ties"),
        ),
    ),
    "verification": Table(
        results=("verification",),
        columns=(
            text("model", "model"),
            text("precision", "precision"),
            number("windows", "windows"),
            number("1 token, ms", "one_token_ms", 1),
            *(number(f"{width} tokens", f"ratio_{width}", 2) for width in (2, 3, 5, 9, 17)),
        ),
    ),
    "live": Table(results=("live",), columns=_LIVE),
    "live-baseline": Table(results=("live-baseline",), columns=_LIVE),
    "live-worst": Table(
        results=("live-worst",),
        columns=(
            text("case", "case"),
            text("finals", "finals"),
            number("minutes", "minutes", 1),
            number("offline words", "offline_words"),
            number("deleted", "deletions"),
            number("substituted", "substitutions"),
            number("inserted", "insertions"),
            numbers("committed, s: median, longest", ("committed_median_s", "committed_longest_s"), 2),
            number("CPU seconds a second of audio", "cpu_factor", 3),
            number("memory at the end, MB", "memory_end_mb"),
        ),
    ),
    "speakers-peers": Table(
        results=("speakers-peers",),
        columns=(
            text("kind", "kind"),
            text("engine", "engine"),
            number("DER", "der_percent", 1),
            numbers(
                "missed, false, confused", ("missed_percent", "false_alarm_percent", "confused_percent"), 1
            ),
            number("DER, collar", "collar_der_percent", 1),
            number("JER", "jer_percent", 1),
            numbers("speakers right", ("counted_right", "recordings"), between=" of "),
            number("difference in DER", "der_difference_percent", 1, sign="+"),
            numbers("95 % interval", ("low", "high"), 1, sign="+", between=" to "),
            number("seconds a second of audio", "real_time_factor", 3),
        ),
        bold=lambda row: row["engine"] == "harken",
    ),
    "live-many": Table(
        results=("live-many",),
        columns=(
            number("streams", "streams"),
            text("passes", "passes"),
            number("seconds of computing a second of audio", "real_time_factor", 2),
            numbers("lag, s: median, 95 %, longest", ("lag_median_s", "lag_95_s", "lag_longest_s"), 2),
        ),
    ),
    "live-hours": Table(
        results=("live-hours",),
        columns=(
            number("hour", "hour"),
            number("processor time a minute of audio, s", "cpu_s_a_minute", 2),
            number("words", "words"),
            number("memory, MB", "resident_mb"),
        ),
    ),
    "speakers-live": Table(
        results=("speakers-live",),
        columns=(
            text("kind", "kind"),
            number("delay, s", "delay_s"),
            number("recordings", "recordings"),
            number("DER", "der_percent", 1),
            number("confused", "confused_percent", 1),
            number("number of speakers right", "counted_right"),
            number("seconds of one core a second of audio", "cpu_factor", 3),
        ),
    ),
    "speakers-hours": Table(
        results=("speakers-hours",),
        columns=(
            number("hour", "hour"),
            number("processor time a minute of audio, s", "cpu_s_a_minute", 2),
            number("memory, MB", "resident_mb"),
            number("clustering of all so far, s", "clustering_s", 2),
            number("speakers", "speakers"),
        ),
    ),
    "serving-live": Table(
        results=("serving-live",),
        columns=(
            text("delay", "delay"),
            number("streams", "streams"),
            numbers("word shown, s: median, 95 %, 99 %", ("shown_50_s", "shown_95_s", "shown_99_s"), 2),
            numbers("committed, s", ("committed_50_s", "committed_95_s", "committed_99_s"), 2),
            numbers("lag, s", ("lag_50_s", "lag_95_s", "lag_99_s"), 2),
            number("processor time a second of audio, s", "cpu_s_a_second", 3),
            number("highest load level", "load_level"),
        ),
    ),
    "serving-files": Table(
        results=("serving-files",),
        columns=(
            text("server", "server"),
            number("clients", "clients"),
            number("times real time", "times_real_time", 1),
            numbers("first words, s: median, 95 %", ("first_50_s", "first_95_s"), 2),
            numbers("whole file, s: median, 95 %", ("file_50_s", "file_95_s"), 2),
        ),
    ),
    "serving-beside": Table(
        results=("serving-beside",),
        columns=(
            text("server", "server"),
            text("long file in progress", "long_file"),
            numbers("short file, s: median, 95 %", ("short_file_50_s", "short_file_95_s"), 2),
        ),
    ),
    "serving-soak": Table(
        results=("serving-soak",),
        columns=(
            number("minutes of each", "audio_minutes_of_each"),
            number("memory, MB", "resident_mb"),
            number("threads", "threads"),
            number("open files", "files"),
        ),
    ),
    "fleet-overhead": Table(
        results=("fleet-overhead",),
        columns=(
            text("way", "way"),
            number("audio, minutes", "audio_minutes"),
            number("time, s", "seconds", 1),
            number("of it to start, s", "start_s", 1),
            spread("overhead, %", "overhead_percent", 1),
            spread("without the start, %", "steady_percent", 1),
            number("processor time without the start, %", "processor_percent", 1),
        ),
    ),
    "fleet-scaling": Table(
        results=("fleet-scaling",),
        columns=(
            number("workers", "workers"),
            number("time, s", "seconds", 1),
            spread("times one worker", "ratio", 2),
            number("the most that the machine gives", "most", 2),
        ),
    ),
    "fleet-kills": Table(
        results=("fleet-kills", "fleet-kills-ray"),
        columns=(
            text("workers", "where"),
            numbers("kills of drivers, workers, nodes", ("driver_kills", "worker_kills", "node_kills")),
            number("runs", "runs"),
            number("rows", "rows"),
            number("lost", "lost"),
            number("doubled", "doubled"),
            number("different", "different"),
        ),
    ),
    "fleet-cluster": Table(
        results=("fleet-cluster",),
        columns=(
            number("hours of audio", "hours"),
            text("order of the manifest", "order"),
            number("recordings", "recordings"),
            number("shards", "shards"),
            numbers("reading, planning, s", ("read_s", "plan_s"), 1),
            number("memory of the driver, MB", "peak_mb"),
            number("its processor time a shard, ms", "driver_ms_a_shard", 2),
            number("workers idle, %", "idle_percent", 2),
            number("of it whatever the order, %", "least_idle_percent", 2),
        ),
    ),
    "fleet-batch-size": Table(
        results=("fleet-batch-size",),
        columns=(
            text("recordings", "set"),
            number("windows at a time", "batch_size"),
            number("time, s", "seconds", 2),
            spread("times that of one", "ratio", 3),
            number("processor time, times that of one", "processor_ratio", 3),
            number("texts that differ", "texts_differ"),
        ),
    ),
}

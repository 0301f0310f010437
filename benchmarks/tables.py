"""Fill in the tables of README.md and docs/ from the results in ``benchmarks/results``.

A table stands in a page between two lines, and what stands between them is replaced::

    <!-- table: NAME -->
    <!-- end table -->

`TABLES` says what NAME shows; ``machines`` is the list of the machines that results name.

    python benchmarks/tables.py
    python benchmarks/tables.py --check      # writes nothing; exit code 1 if a page would change
"""

from __future__ import annotations

import argparse
import re
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import FOLDER, PACKAGES, ROOT, Result, read, read_machines

BEGIN = re.compile(r"^<!-- table: (\S+) -->$", re.MULTILINE)
PLACE = re.compile(r"^<!-- table: (\S+) -->\n(.*?)^<!-- end table -->$", re.MULTILINE | re.DOTALL)
MISSING = "-"
FOLDERS = re.compile(r" --(audio|save) \S+")
"""Options of every program that only say where recordings and results are."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the docs.

    Parameters
    ----------
    columns : mapping of str to str
        Heading and cell of each column. A cell is a format string over a row and the settings of its result;
        ``{x~:.2f}`` is a median with its range, ``x_low`` to ``x_high``. Columns whose numbers have a format are
        aligned to the right.
    results : tuple of str
        Results whose rows it shows, one after the other; by default that of its name.
    """

    columns: Mapping[str, str]
    results: tuple[str, ...] = ()


class Cells(string.Formatter):
    """Formats cells: a missing value is a dash, and ``{x~}`` a median with its range."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = field_name.removesuffix("~")
        if name == field_name:
            return kwargs[name], name
        return Spread(kwargs[name], kwargs[f"{name}_low"], kwargs[f"{name}_high"]), name

    def format_field(self, value: Any, format_spec: str) -> str:
        return MISSING if value is None else format(value, format_spec)


@dataclass(frozen=True)
class Spread:
    """A median and the range of the turns, which is left out where it is a point."""

    middle: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        middle, low, high = (format(value, form) for value in (self.middle, self.low, self.high))
        return middle if low == high else f"{middle} ({low} to {high})"


_ERRORS = {
    "recordings": "{group}",
    "number": "{recordings:d}",
    "harken, %": "{harken:.2f}",
    "faster-whisper, %": "{faster-whisper:.2f}",
    "difference": "{to faster-whisper:+.2f}",
    "95 % interval": "{to faster-whisper, low:+.2f} to {to faster-whisper, high:+.2f}",
}
_ENGINES = {
    "engine": "{engine}",
    "times real time": "{times_real_time:.1f}",
    "time over harken's": "{ratio~:.2f}",
    "errors, %": "{error_percent:.2f}",
    "peak memory, MB": "{peak_mb:.0f}",
}
TABLES = {
    "engines": Table({"model": "{model}"} | _ENGINES, results=("engines", "engines-base")),
    "engines-small": Table(_ENGINES),
    "engines-avx512": Table(
        {"model": "{model}"} | _ENGINES,
        results=("engines-avx512-small", "engines-avx512-base", "engines-avx512"),
    ),
    "engines-long": Table(
        {"model": "{model}", "set": "{set}"} | _ENGINES | {"loading, s": "{load_s:.2f}"},
        results=("engines-long-small", "engines-long"),
    ),
    "expected": Table(
        {
            "model": "{model}",
            "assistant": "{assistant}",
            "ms a token": "{step_ms:.1f}",
            "pass over 5, 8 tokens": "{5 over 1:.2f}, {8 over 1:.2f}",
            "draft step": "{draft over 1:.3f}",
            "0.6": "{gain 0.6:.2f}",
            "0.7": "{gain 0.7:.2f}",
            "0.8": "{gain 0.8:.2f}",
            "0.9": "{gain 0.9:.2f}",
        }
    ),
    "gpu": Table(
        {
            "model": "{model}",
            "engine": "{engine}",
            "windows": "{batch:d}",
            "encoding, ms a window": "{encode_ms:.1f}",
            "ms a token": "{step_ms:.2f}",
            "tokens a pass": "{tokens_a_pass:.1f}",
            "times real time": "{times_real_time:.0f}",
        },
        results=("gpu", "gpu-turbo"),
    ),
    "errors-base": Table(_ERRORS),
    "errors-base-beam": Table(_ERRORS),
    "errors-small": Table(_ERRORS),
    "errors-tiny-en": Table(_ERRORS),
    "hashing-cost": Table(
        {
            "positions": "{positions:d}",
            "full, ms": "{full_ms:.1f}",
            "near alone": "{rounds 0:.2f}",
            "1 hash": "{rounds 1:.2f}",
            "3 hashes": "{rounds 3:.2f}",
            "7 hashes": "{rounds 7:.2f}",
        }
    ),
    "subtitles": Table(
        {
            "style": "{style}",
            "cues": "{cues}",
            "number": "{number:d}",
            "with a broken rule": "{breaking:d}",
            "too fast": "{only_too_fast:d}",
        }
    ),
    "word-times": Table(
        {
            "voice": "{voice}",
            "engine": "{engine}",
            "words": "{words:d}",
            "start, end: mean, ms": "{start_mean_ms:.0f}, {end_mean_ms:.0f}",
            "starts within 20, 50, 100 ms, %": "{start_within_20_percent:.0f}, {start_within_50_percent:.0f}, "
            "{start_within_100_percent:.0f}",
            "F1 at 50 ms, %": "{f1_percent:.1f}",
        }
    ),
    "parity": Table(
        {
            "model": "{model}",
            "search": "{search}",
            "set": "{set}",
            "with the same tokens": "{equal:d}/{recordings:d}",
        },
        results=("parity", "parity-base", "parity-small"),
    ),
    "memory": Table(
        {
            "recording": "{recording}",
            "peak memory, MB": "{peak_mb:.0f}",
            "seconds": "{seconds:.1f}",
            "times real time": "{times_real_time:.1f}",
        }
    ),
    "live": Table(
        {
            "session": "{session}",
            "shown, s: median, 95 %": "{shown_median_s:.2f}, {shown_95_s:.2f}",
            "committed, s: median, 95 %": "{committed_median_s:.2f}, {committed_95_s:.2f}",
            "errors, %": "{error_percent:.2f}",
            "of the offline pass": "{offline_error_percent:.2f}",
            "CPU seconds a second of audio": "{cpu_factor:.3f}",
            "flicker": "{flicker:.2f}",
        }
    ),
    "speakers-peers": Table(
        {
            "kind": "{kind}",
            "engine": "{engine}",
            "DER": "{der_percent:.1f}",
            "DER, collar": "{collar_der_percent:.1f}",
            "speakers right": "{counted_right:d}/{recordings:d}",
            "difference in DER": "{der_difference_percent:+.1f}",
            "95 % interval": "{der_difference_percent, low:+.1f} to {der_difference_percent, high:+.1f}",
        }
    ),
    "serving-live": Table(
        {
            "delay": "{delay}",
            "streams": "{streams:d}",
            "word shown, s: median, 95 %, 99 %": "{shown_50_s:.2f}, {shown_95_s:.2f}, {shown_99_s:.2f}",
            "committed, s": "{committed_50_s:.2f}, {committed_95_s:.2f}, {committed_99_s:.2f}",
            "processor time a second of audio, s": "{cpu_s_a_second:.3f}",
            "highest load level": "{load_level:d}",
        }
    ),
    "fleet-overhead": Table(
        {
            "way": "{way}",
            "time, s": "{seconds:.1f}",
            "of it to start, s": "{start_s:.1f}",
            "overhead, %": "{overhead_percent~:.1f}",
            "without the start, %": "{steady_percent~:.1f}",
        }
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a page would change"
    )
    check = parser.parse_args().check
    stale = [page for page in pages(ROOT) if refresh(page, check=check)]
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'is not up to date' if check else 'updated'}")
    if check and stale:
        sys.exit("run: python benchmarks/tables.py")


def pages(root: Path) -> list[Path]:
    """Return all pages that may hold tables."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def refresh(
    page: Path, tables: Mapping[str, Table] = TABLES, folder: Path = FOLDER, *, check: bool = False
) -> bool:
    """Fill in the tables of one page; return whether that changed it, or with `check` would change it."""
    before = page.read_text(encoding="utf-8")
    try:
        after = fill(before, tables, folder)
    except ValueError as error:
        raise SystemExit(f"{page}: {error}") from error
    if after != before and not check:
        page.write_text(after, encoding="utf-8")
    return after != before


def fill(page: str, tables: Mapping[str, Table] = TABLES, folder: Path = FOLDER) -> str:
    """Return the text of a page with all its tables filled in.

    Raises
    ------
    ValueError
        If a table has no end or no layout, or a result that it shows is missing.
    """
    begun, whole = names(page), [place[1] for place in PLACE.finditer(page)]
    if begun != whole:
        raise ValueError(f"a table without <!-- end table -->: one of {', '.join(begun)}")
    if unknown := [name for name in begun if name not in (*tables, "machines")]:
        raise ValueError(f"tables without a layout: {', '.join(unknown)}")

    def content(name: str) -> str:
        if name == "machines":
            return "\n".join(["", *(f"* `{each.name}`: {each}." for each in read_machines(folder)), ""])
        return render(tables[name], [read(each, folder) for each in tables[name].results or (name,)])

    return PLACE.sub(lambda place: f"<!-- table: {place[1]} -->\n{content(place[1])}\n<!-- end table -->", page)


def names(page: str) -> list[str]:
    """Return the names of the tables of a page."""
    return BEGIN.findall(page)


def render(table: Table, results: Sequence[Result]) -> str:
    """Return a table as Markdown, with a line after it for each result: when, where and by what it was measured."""
    rule = ["---:" if re.search(r":[^}]*[dfg]}", cell) else "---" for cell in table.columns.values()]
    rows = [cells(table, {**result.settings, **row}) for result in results for row in result.rows]
    lines = [f"| {' | '.join(row)} |" for row in ([*table.columns], rule, *rows)]
    return "\n".join(["", *lines, *(line for result in results for line in ("", source(result))), ""])


def cells(table: Table, row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one row."""
    return [Cells().vformat(cell, (), row).replace("|", "\\|") for cell in table.columns.values()]


def source(result: Result) -> str:
    """Return a line that says when, where, with what and how a result was measured.

    The file of the result has the whole command, the time of day, and the versions of what takes part in every
    measurement.
    """
    load = "" if result.load is None else f", load {result.load}"
    settings = {key: _plain(value) for key, value in result.settings.items() if value is not None}
    versions = {
        package: version for package, version in result.versions.items() if package not in ("Python", *PACKAGES)
    }
    parts = [
        f"Measured {result.date.split()[0]}, commit {result.commit}, on `{result.machine.name}`{load}",
        ", ".join(
            f"{key.replace('_', ' ')} {value}"
            for key, value in settings.items()
            if f"--{key} {value} " not in f"{result.command} "
        ),
        ", ".join(f"{package} {version}" for package, version in versions.items()),
        f"`{FOLDERS.sub('', result.command)}`",
    ]
    return "; ".join(filter(None, parts)) + "."


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    main()

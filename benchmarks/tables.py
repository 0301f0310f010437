"""Fill in the tables of README.md and docs/ from the results in ``benchmarks/results``.

A table stands in a page between two lines, and what stands between them is replaced::

    <!-- table: NAME -->
    <!-- end table -->

`TABLES` says what NAME shows; ``machines`` lists the machines that results name, ``versions`` the packages.

    python benchmarks/tables.py
    python benchmarks/tables.py --check      # writes nothing; exit code 1 if a page would change
"""

from __future__ import annotations

import argparse
import re
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from results import FOLDER, MACHINES, PACKAGES, ROOT, Result, read, read_machines

BEGIN = re.compile(r"^<!-- table: (\S+) -->$", re.MULTILINE)
PLACE = re.compile(r"^<!-- table: (\S+) -->\n(.*?)^<!-- end table -->$", re.MULTILINE | re.DOTALL)
MISSING = "-"
FOLDERS = re.compile(r" --((audio|save) \S+|peer-models( '[^']+=[^']+'| \S+=\S+)+)")
"""Options that only say where recordings, results and the models of other engines are."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the docs.

    Parameters
    ----------
    columns : mapping of str to str
        Heading and cell of each column. A cell is a format string over a row and the settings of its result;
        ``{x~:.2f}`` is a value with its range, from ``x_low`` or ``x, low`` to ``x_high`` or ``x, high``. Columns
        whose numbers have a format are aligned to the right.
    results : tuple of str
        Results whose rows it shows, one after the other; by default that of its name.
    across : mapping of str to str
        Heading and cell of further columns, over a row too. Rows with the same cells in `columns` are one row of the
        table, and each fills the columns that its headings name.
    """

    columns: Mapping[str, str]
    results: tuple[str, ...] = ()
    across: Mapping[str, str] = field(default_factory=dict)


class Cells(string.Formatter):
    """Formats cells: a missing value is a dash, and ``{x~}`` a value with its range."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = field_name.removesuffix("~")
        if name == field_name:
            return kwargs[name], name
        if kwargs[name] is None:
            return None, name
        joint = "_" if f"{name}_low" in kwargs else ", "
        return Spread(kwargs[name], kwargs[f"{name}{joint}low"], kwargs[f"{name}{joint}high"]), name

    def format_field(self, value: Any, format_spec: str) -> str:
        return MISSING if value is None else format(value, format_spec)


@dataclass(frozen=True)
class Spread:
    """A median and the range of the turns, or a difference and its interval, left out where it is a point."""

    middle: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        middle, low, high = (format(value, form) for value in (self.middle, self.low, self.high))
        return middle if low == high else f"{middle} ({low} to {high})"


_ENGINES = {
    "engine": "{engine}",
    "times real time": "{times_real_time:.1f}",
    "time over harken's": "{ratio~:.2f}",
    "errors, %": "{error_percent:.2f}",
    "peak memory, MB": "{peak_mb:.0f}",
}
TABLES = {
    "engines-avx512-small": Table(_ENGINES),
    "engines-avx512": Table(
        {"model": "{model}"} | _ENGINES,
        results=("engines-avx512-small", "engines-avx512-base", "engines-avx512"),
    ),
    "engines-long": Table(
        {"model": "{model}", "set": "{set}"} | _ENGINES | {"loading, s": "{load_s:.2f}"},
        results=("engines-long-small", "engines-long-base", "engines-long"),
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
    "errors": Table(
        {"recordings": "{group}"},
        results=("errors-base", "errors-base-beam", "errors-small", "errors-tiny-en"),
        across={
            "{model}, beam size {beam_size}": "{recordings:d}: {harken:.2f}, {faster-whisper:.2f} "
            "({to faster-whisper, low:+.2f} to {to faster-whisper, high:+.2f})"
        },
    ),
    "word-times": Table(
        {"engine": "{engine}"},
        across={
            "{voice}": "{words:d}; {start_mean_ms:.0f}, {end_mean_ms:.0f}; {start_within_20_percent:.0f}, "
            "{start_within_50_percent:.0f}, {start_within_100_percent:.0f}; {f1_percent:.1f}"
        },
    ),
    "parity": Table(
        {
            "model": "{model}",
            "set": "{set}",
        },
        results=("parity", "parity-base", "parity-small"),
        across={"{search}": "{equal:d}/{recordings:d}"},
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
        },
        across={
            "{engine}": "{der_percent:.1f}, {collar_der_percent:.1f}, {counted_right:d}/{recordings:d}",
            "difference of {engine}": "{der_difference_percent~:+.1f}",
        },
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
    if unknown := [name for name in begun if name not in (*tables, *LISTS)]:
        raise ValueError(f"tables without a layout: {', '.join(unknown)}")

    def content(name: str) -> str:
        if name in LISTS:
            return LISTS[name](folder)
        return render(tables[name], [read(each, folder) for each in tables[name].results or (name,)])

    return PLACE.sub(lambda place: f"<!-- table: {place[1]} -->\n{content(place[1])}\n<!-- end table -->", page)


def names(page: str) -> list[str]:
    """Return the names of the tables of a page."""
    return BEGIN.findall(page)


def machine_list(folder: Path) -> str:
    """Return a list of the machines that results of a folder were measured on."""
    return "\n".join(["", *(f"* `{each.name}`: {each}." for each in read_machines(folder)), ""])


def version_list(folder: Path) -> str:
    """Return a sentence of the packages that results of a folder name, but `PACKAGES`, with their versions."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name != MACHINES:
            for package, version in read(path.stem, folder).versions.items():
                found.setdefault(package, set()).add(version)
    shown = (
        f"{package} {' or '.join(sorted(found[package]))}"
        for package in sorted(found)
        if package not in ("Python", *PACKAGES)
    )
    return f"\n{', '.join(shown)}.\n"


LISTS = {"machines": machine_list, "versions": version_list}


def render(table: Table, results: Sequence[Result]) -> str:
    """Return a table as Markdown, and behind it when, where and by what commands it was measured."""
    rows = [{**result.settings, **row} for result in results for row in result.rows]
    pairs = [
        *table.columns.items(),
        *((_cell(name, row), cell) for row in rows for name, cell in table.across.items()),
    ]
    headings = dict(pairs)
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        fixed = {name: _cell(cell, row) for name, cell in table.columns.items()}
        free = {_cell(name, row): _cell(cell, row) for name, cell in table.across.items()}
        key = tuple(fixed.values()) if table.across else (str(len(lines)),)
        lines.setdefault(key, {}).update(fixed | free)
    shown = [name for name in headings if any(line.get(name, MISSING) != MISSING for line in lines.values())]
    rule = ["---:" if re.search(r":[^}]*[dfg]}", headings[name]) else "---" for name in shown]
    cells = ([line.get(name, MISSING) for name in shown] for line in lines.values())
    return "\n".join(
        ["", *(f"| {' | '.join(row)} |" for row in (shown, rule, *cells)), "", source(results), ""]
    )


def _cell(cell: str, row: Mapping[str, Any]) -> str:
    return Cells().vformat(cell, (), row).replace("|", "\\|")


def source(results: Sequence[Result]) -> str:
    """Return a line that says when, where and how results were measured.

    The file of a result has the whole command, the time of day, and the versions of what took part.
    """
    sentences = []
    for (date, name), group in groupby(results, lambda result: (result.date.split()[0], result.machine.name)):
        listed = [(result, _settings(result)) for result in group]
        shared = [fact for fact in listed[0][1] if all(fact in facts for _, facts in listed)]
        commands = (
            f"`{FOLDERS.sub('', result.command)}` "
            f"({', '.join([*_origin(result), *(fact for fact in facts if fact not in shared)])})"
            for result, facts in listed
        )
        sentences.append(f"Measured {', '.join([f'{date} on `{name}`', *shared])}: {'; '.join(commands)}.")
    return " ".join(sentences)


def _origin(result: Result) -> list[str]:
    return [f"commit {result.commit}", *([] if result.load is None else [f"load {result.load}"])]


def _settings(result: Result) -> list[str]:
    """Return the settings that the command does not name."""
    return [
        f"{key.replace('_', ' ')} {_plain(value)}"
        for key, value in result.settings.items()
        if value is not None and f"--{key} {_plain(value)} " not in f"{result.command} "
    ]


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    main()

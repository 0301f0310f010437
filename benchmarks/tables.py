"""Fill in the tables of README.md and docs/ from the results in ``benchmarks/results``.

A table stands in a page between two lines::

    <!-- table: NAME -->
    <!-- end table -->

and `layouts` says what NAME shows. What stands between the lines is replaced.

    python benchmarks/tables.py
    python benchmarks/tables.py --check      # writes nothing; exit code 1 if a page would change
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from layouts import TABLES, Table
from results import FOLDER, ROOT, Machine, Result, Row, read

BEGIN = re.compile(r"^<!-- table: (\S+) -->$", re.MULTILINE)
PLACE = re.compile(r"^<!-- table: (\S+) -->\n(.*?)^<!-- end table -->$", re.MULTILINE | re.DOTALL)


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
    if unknown := [name for name in begun if name not in tables]:
        raise ValueError(f"tables without a layout: {', '.join(unknown)}")
    return PLACE.sub(
        lambda place: f"<!-- table: {place[1]} -->\n{render(tables[place[1]], folder)}\n<!-- end table -->",
        page,
    )


def names(page: str) -> list[str]:
    """Return the names of the tables of a page."""
    return BEGIN.findall(page)


def render(table: Table, folder: Path = FOLDER) -> str:
    """Return a table as Markdown, with a line below it for each result: where and when it was measured.

    A result that has not been measured with this code has no file; a line says so in place of its rows.
    """
    missing = [name for name in table.results if not (folder / f"{name}.json").exists()]
    results = [read(name, folder) for name in table.results if name not in missing]
    rows = [cells(table, row) for result in results for row in result.rows if table.rows(row)]
    rule = ["---:" if column.right else "---" for column in table.columns]
    header = [column.heading for column in table.columns]
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *rows)] if rows else []
    notes = dict.fromkeys(source(result, versions=table.versions) for result in results)
    notes |= dict.fromkeys(
        f"Not measured with this code yet: `--save {name}` adds the figures." for name in missing
    )
    return "\n".join(["", *lines, *(line for note in notes for line in ("", note) if lines or line), ""])


def cells(table: Table, row: Row) -> list[str]:
    """Return the cells of one row."""
    first, *others = (column.cell(row).replace("|", "\\|") for column in table.columns)
    return [f"**{first}**" if table.bold(row) else first, *others]


def source(result: Result, *, versions: bool) -> str:
    """Return a line that says where, when and with what a result was measured."""
    parts = [
        f"Measured {result.date} UTC, commit {result.commit}, on {describe(result.machine)}",
        *extras(result),
    ]
    if versions:
        parts += [", ".join(f"{package} {version}" for package, version in result.versions.items())]
        parts += [f"`{result.command}`"]
    return "; ".join(parts) + "."


def extras(result: Result) -> Iterator[str]:
    """Yield what holds for all rows of a result, in words."""
    if result.settings:
        yield ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in result.settings.items())


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def describe(machine: Machine) -> str:
    """Describe a computer in a few words."""
    amx = [] if any(flag.startswith("amx") for flag in machine.flags) or not machine.flags else ["no AMX"]
    flags = f" with {', '.join([*machine.flags, *amx])}" if machine.flags else ""
    load = "" if machine.load is None else f", load {machine.load}"
    return f"{machine.processor}, {machine.cores} cores{flags}, {machine.system}{load}"


if __name__ == "__main__":
    main()

"""Print docs/reference.md, the reference of the command line, from the commands themselves.

::

    python docs/reference.py > docs/reference.md
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator

import click

from harken.cli.exits import EXITS
from harken.cli.root import COMMANDS, harken

Row = tuple[str, str]  # flags and help of an option
Sections = dict[str, list[Row]]
MIN_SHARED = 3
"""Fewer options of one heading stand with the command."""


def main() -> None:
    """Print the page."""
    sys.stdout.write(page())


def page() -> str:
    """Return the page."""
    # The names are those of the commands, which keep their help option once it has been made.
    context = click.Context(harken, max_content_width=1000, help_option_names=["-h", "--help"])
    commands = {name: harken.get_command(context, name) for name in COMMANDS}
    sections = {name: sections_of(command, context) for name, command in commands.items() if command}
    shared = shared_sections(sections)
    lines = [
        "# Reference of the command line",
        "",
        "Made by `python docs/reference.py` from the commands themselves; `harken COMMAND --help` shows the same.",
        "Options that several commands have are [at the end](#shared-options).",
        "",
    ]
    for name, command in commands.items():
        if command:
            usage = " ".join(command.collect_usage_pieces(click.Context(command, parent=context)))
            lines += [
                f"## harken {name}",
                "",
                f"```text\nharken {name} {usage}\n```",
                "",
                *description(command),
            ]
            lines += own_options(sections[name], shared)
    lines += ["## Shared options", ""]
    for title, rows in shared.items():
        lines += [f"### {title}", "", *table(rows), ""]
    lines += ["## Exit codes", "", "| Code | Meaning |", "| ---: | --- |"]
    lines += [f"| {exit.code} | {exit.meaning} |" for exit in EXITS]
    return "\n".join(lines) + "\n"


def description(command: click.Command) -> Iterator[str]:
    """Yield the paragraphs of a command's help, each followed by an empty line."""
    for paragraph in (command.help or "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def sections_of(command: click.Command, context: click.Context) -> Sections:
    """Return the options of a command by their heading, but for ``--help``."""
    sections: Sections = defaultdict(list)
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record:
            sections[getattr(option, "section", "Other")].append(record)
    return sections


def shared_sections(sections: dict[str, Sections]) -> Sections:
    """Return the options that several commands have, by their heading, where there are at least `MIN_SHARED`.

    Of options with one name that which most commands have is shared; the others stand with their commands.
    """
    users: dict[str, Counter[Row]] = defaultdict(Counter)
    for of_command in sections.values():
        for title, rows in of_command.items():
            users[title].update(rows)
    shared = {}
    for title, counts in users.items():
        most = {long_name(row): row for row in sorted(counts, key=lambda row: counts[row])}
        shared[title] = [row for row, n in counts.items() if n > 1 and row == most[long_name(row)]]
    return {title: rows for title, rows in shared.items() if len(rows) >= MIN_SHARED}


def own_options(sections: Sections, shared: Sections) -> Iterator[str]:
    """Yield the tables of a command's own options, and the names of the shared ones."""
    links = []
    for title, rows in sections.items():
        of_all = shared.get(title, [])
        used = [row for row in of_all if row in rows]
        if len(used) < MIN_SHARED:
            used = []
        own = [row for row in rows if row not in used]
        if any(help for _, help in own):
            yield from (f"{title}:", "", *table(own), "")
        elif own:
            yield from (f"{title}: {names(own)}.", "")
        if used:
            missing = [row for row in of_all if long_name(row) not in map(long_name, rows)]
            links.append(f"[{title}](#{title.lower()})" + (f" without {names(missing)}" if missing else ""))
    if links:
        yield from (f"Shared options: {'; '.join(links)}.", "")


def names(rows: list[Row]) -> str:
    """Return the first long name of each option, in a list."""
    return ", ".join(f"`{long_name(row)}`" for row in rows)


def long_name(row: Row) -> str:
    """Return the first long name of an option."""
    return next(name.rstrip(",") for name in row[0].split() if name.startswith("--"))


def table(rows: list[Row]) -> Iterator[str]:
    """Yield a table of options."""
    yield from ("| Option | Meaning |", "| --- | --- |")
    for flags, help in rows:
        escaped = flags.replace("|", "\\|")
        yield f"| `{escaped}` | {' '.join(help.split())} |"


if __name__ == "__main__":
    main()

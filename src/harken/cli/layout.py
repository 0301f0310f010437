"""How times, sizes and tables are laid out for people."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harken.formats import format_timestamp


def format_time(seconds: float) -> str:
    """Time as ``mm:ss.mmm``, with hours where there are any."""
    return format_timestamp(round(seconds * 1000)).removeprefix("00:")


def format_timed_text(start_s: float, end_s: float, text: str) -> str:
    """One line: when something was said, and what."""
    return f"[{format_time(start_s)} --> {format_time(end_s)}] {text.strip()}"


def format_table(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows of a table, its columns as wide as they need to be."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def pluralize(count: int, noun: str) -> str:
    """How many there are of something."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def human_size(size: int) -> str:
    """Bytes, with the unit that people would choose."""
    power = min(int(math.log(max(size, 1), 1000)), 3)
    return f"{size / 1000**power:.{power and 1}f} {('B', 'kB', 'MB', 'GB')[power]}"

"""Runs of `harken batch` in processes of their own, and workers that some recordings kill or hold up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# Python imports this module at its start, in workers of all kinds: a recording's name says what happens when it is
# opened.
SABOTAGE = """
import os, signal, time
from harken.batch import read_ahead
open_file = read_ahead._open

def sabotaged(recording):
    name = os.path.basename(recording.location)
    if name.startswith("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("slow"):
        time.sleep(0.5)
    return open_file(recording)

read_ahead._open = sabotaged
"""


def sabotaged_environment(folder: Path) -> dict[str, str]:
    """Return the environment of processes in which recordings do what their names say."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SABOTAGE)
    source = Path(__file__).parents[2] / "src"
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(source)])}


def start(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
    """Start ``harken batch`` with arguments."""
    command = [sys.executable, "-m", "harken", "batch", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **settings
    )


def run(*arguments: object, **settings: Any) -> tuple[int, str]:
    """Run ``harken batch`` with arguments; return its exit code and its standard error."""
    process = start(*arguments, **settings)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def rows_of(out: Path) -> list[Row]:
    """Return all rows of an output folder."""
    return [*_rows(out)]


def _rows(out: Path) -> Iterator[Row]:
    for shard in sorted((out / "shards").glob("*.jsonl")):
        for line in shard.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)

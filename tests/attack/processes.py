"""Running ``python -m harken`` as a process, as a user does, and what must hold however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from harken.cli.exits import EXITS, UNEXPECTED

HARKEN = (sys.executable, "-m", "harken")
SOURCE = Path(__file__).parents[2] / "src"
CODES = {exit.code for exit in EXITS} - {UNEXPECTED}
PATIENCE_S = 120
"""Time after which a process counts as hanging."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a process.

    Parameters
    ----------
    code : int
        Exit code; negative if a signal ended it.
    out, err : str
    """

    code: int
    out: str
    err: str


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process with a cache of its own and without access to the hub."""
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUTF8": "1",
        "HARKEN_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return os.environ | own | more


def run(
    arguments: Sequence[object],
    folder: Path,
    cache: Path,
    *,
    stdin: bytes = b"",
    more: Mapping[str, str] | None = None,
) -> Ended:
    """Run ``harken`` in a folder to its end."""
    return run_program(HARKEN, arguments, folder, cache, stdin=stdin, more=more)


def run_program(
    program: Sequence[str],
    arguments: Sequence[object],
    folder: Path,
    cache: Path,
    *,
    stdin: bytes = b"",
    more: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program that becomes ``harken``, as `run` does."""
    done = subprocess.run(
        [*program, *map(_argument, arguments)],
        cwd=folder,
        env=environment(cache, **(more or {})),
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return Ended(
        code=done.returncode, out=done.stdout.decode(errors="replace"), err=done.stderr.decode(errors="replace")
    )


def _argument(argument: object) -> str | bytes:
    return argument if isinstance(argument, bytes) else str(argument)


def error_faults(ended: Ended, typed: str = "") -> list[str]:
    """Return what is wrong with the exit code and standard error of a process that ended by itself.

    Parameters
    ----------
    ended : Ended
    typed : str
        The command line: "nan" may be in a message if the user typed it.
    """
    faults = []
    lines = ended.err.splitlines()
    if ended.code not in CODES:
        faults.append(f"exit code {ended.code}")
    if "Traceback" in ended.err:
        faults.append("a traceback")
    if ended.code not in (0, 141) and not (lines and lines[-1].startswith("harken: ")):
        faults.append(f"the last line of the error is {lines[-1:]!r}")
    if any(is_control(character) for character in ended.err):
        faults.append("a control character on standard error")
    if "nan" in ended.err.lower().split() and "nan" not in typed.lower():
        faults.append("nan in a message")
    return faults


def is_control(character: str) -> bool:
    """Return whether a character steers a terminal; ends of lines and tabs do no harm."""
    return character not in "\n\t\r" and (ord(character) < 32 or 127 <= ord(character) < 160)


def damaged_cache_entries(cache: Path, *, leftovers: bool = True) -> list[str]:
    """Return the entries of a cache that are not whole, and with `leftovers` those of processes that were killed."""
    faults = []
    for entry in sorted((cache / "graphs").glob("*")):
        if entry.name.startswith("."):
            faults += [f"left in the cache: {entry.name}"] if leftovers else []
            continue
        faults += [
            f"damaged in the cache: {file}" for file in sorted(entry.glob("*")) if not file.stat().st_size
        ]
        faults += _checksum_faults(entry)
    return faults


def _checksum_faults(entry: Path) -> list[str]:
    import json

    file = entry / "checksums.json"
    if not file.is_file():
        return [f"in the cache without checksums: {entry.name}"]
    return [
        f"damaged in the cache: {entry.name}/{name}"
        for name, checksum in json.loads(file.read_text()).items()
        if isinstance(checksum, int) and crc32((entry / name).read_bytes()) != checksum
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def speech(start_s: float, duration_s: float, rate: int = 16_000) -> NDArray[np.float64]:
    """Return a part of the example recording at a sampling rate."""
    from harken.audio import load_audio
    from real_models import EXAMPLE

    samples = load_audio(EXAMPLE)[round(start_s * 16_000) : round((start_s + duration_s) * 16_000)]
    at = np.arange(round(len(samples) * rate / 16_000)) * 16_000 / rate
    return np.interp(at, np.arange(len(samples)), samples).astype(np.float64)

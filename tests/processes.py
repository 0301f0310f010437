"""Running ``python -m harken`` as a process, as a user does, and what must hold however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli_runner import Outcome
from harken.cli.exits import EXITS, UNEXPECTED

HARKEN = (sys.executable, "-m", "harken")
SOURCE = Path(__file__).parents[1] / "src"
CODES = {exit.code for exit in EXITS} - {UNEXPECTED}
PATIENCE_S = 120
"""Time after which a process counts as hanging."""


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process with a cache of its own and without access to the hub."""
    own = {
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUTF8": "1",
        "HARKEN_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    kept = {
        name: value for name, value in os.environ.items() if name not in ("HARKEN_DEBUG", "PYTHONUNBUFFERED")
    }
    return kept | own | more


@contextmanager
def started(
    arguments: Sequence[object],
    folder: Path,
    cache: Path,
    *,
    program: Sequence[str] = HARKEN,
    more: dict[str, str] | None = None,
    **settings: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``harken``, or a program in its place, in a folder; it is killed at the end of the block."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [*program, *(argument if isinstance(argument, bytes) else str(argument) for argument in arguments)],
        cwd=folder,
        env=environment(cache, **(more or {})),
        **(streams | settings),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(
    process: subprocess.Popen[bytes], stdin: bytes | None = None, *, limit_s: float = PATIENCE_S
) -> Outcome:
    """Wait for the end of a process; the code is negative if a signal ended it."""
    written = [stream or b"" for stream in process.communicate(stdin, timeout=limit_s)]
    out, err = (text.decode(errors="replace").replace("\r\n", "\n") for text in written)
    return Outcome(code=process.returncode, out=out, err=err)


def run(
    arguments: Sequence[object], folder: Path, cache: Path, *, stdin: bytes = b"", **settings: Any
) -> Outcome:
    """Run ``harken`` in a folder to its end."""
    with started(arguments, folder, cache, stdin=subprocess.PIPE, **settings) as process:
        return ended(process, stdin)


def error_faults(ended: Outcome, typed: str = "") -> list[str]:
    """Return what is wrong with the exit code and standard error of a process that ended by itself.

    "nan" may be in a message if it was typed, on the command line.
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


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Let no file become larger than a size; the write fails as on a full disk."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


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

"""Results of the benchmarks as JSON: what was measured, and where, when and with what.

A file in ``benchmarks/results`` but ``machines.json`` holds the result of one command, as an object:

=========== ========================================================================================
``name``     name of the file
``command``  command line, as it is typed in the root of the repository
``date``     when it began, UTC
``commit``   short hash of the commit, with ``+changes`` where files in src/ differed from it
``machine``  name of the machine in ``machines.json``, which describes each once
``load``     how many processes were running when it began; null where the system does not tell
``versions`` versions of Python and of the packages that took part
``settings`` what holds for all rows, such as the model and the number of threads
``rows``     objects with the same keys; a number is in the unit that its key ends with
=========== ========================================================================================

`tables` makes the tables in README.md and docs/ from these files.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
MACHINES = "machines.json"
PACKAGES = ("harken", "numpy", "onnxruntime", "openvino")
"""Packages that take part in everything harken does on a CPU."""
FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
"""Instruction sets for which the runtimes have kernels of their own, as Linux names them."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer, as far as it explains a time; without flags where the system does not tell."""

    name: str
    processor: str
    cores: int  # that a process may use
    flags: Sequence[str]
    system: str

    def __str__(self) -> str:
        amx = ["no AMX"] if self.flags and not any(flag.startswith("amx") for flag in self.flags) else []
        flags = f" with {', '.join([*self.flags, *amx])}" if self.flags else ""
        return f"{self.processor}, {self.cores} cores{flags}, {self.system}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one command, with the fields of its file."""

    name: str
    command: str
    date: str
    commit: str
    machine: Machine
    load: float | None
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    rows: list[Row] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        """Add a row, and print it."""
        self.rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def begin(name: str, settings: Mapping[str, Any], packages: Iterable[str] = ()) -> Result:
    """Note where, when and with what something is measured, before it begins; packages, beside `PACKAGES`."""
    return Result(
        name=name,
        command=command(sys.argv),
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        commit=commit(),
        machine=machine(),
        load=round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        versions=versions((*PACKAGES, *packages)),
        settings={key: portable(value) for key, value in settings.items()},
    )


def write(result: Result, folder: Path = FOLDER) -> Path:
    """Write a result to ``NAME.json`` in a folder; return the path.

    Raises
    ------
    ValueError
        If there are no rows, or two have different keys.
    """
    if not result.rows or any(row.keys() != result.rows[0].keys() for row in result.rows):
        raise ValueError(f"{result.name}: allowed are one or more rows, all with the same keys")
    folder.mkdir(parents=True, exist_ok=True)
    path, fields = folder / f"{result.name}.json", asdict(result) | {"machine": result.machine.name}
    machines = {each.name: asdict(each) for each in (*read_machines(folder), result.machine)}
    facts = {name: {key: each[key] for key in each if key != "name"} for name, each in sorted(machines.items())}
    for target, content in ((folder / MACHINES, facts), (path, fields)):
        entries = ",\n".join(f" {json.dumps(key)}: {_dump(value)}" for key, value in content.items())
        target.write_text(f"{{\n{entries}\n}}\n", encoding="utf-8")
    return path


def _dump(value: Any) -> str:
    """Return a value as JSON on one line, but the rows of a result on a line each."""
    if value and isinstance(value, list) and isinstance(value[0], dict):
        return "[\n  {}\n ]".format(",\n  ".join(map(_dump, value)))
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_machines(folder: Path) -> list[Machine]:
    """Return all machines that results of a folder were measured on, by name."""
    path = folder / MACHINES
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return [Machine(name=name, **facts) for name, facts in known.items()]


def read(name: str, folder: Path = FOLDER) -> Result:
    """Read a result.

    Raises
    ------
    ValueError
        If the file is missing, or not what `write` writes.
    """
    path = folder / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        machines = {each.name: each for each in read_machines(folder)}
        return Result(**content | {"machine": machines[content["machine"]]})
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


def command(argv: Sequence[str]) -> str:
    """Return a command line that can be typed in the root of the repository."""
    program, *arguments = argv
    path = Path(program).resolve()
    shown = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return " ".join(["python", shown, *map(shlex.quote, map(portable, arguments))])


def portable(value: Any) -> Any:
    """Return the last component of a path out of the repository, also behind "NAME=", and any other value as it is."""
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    name, equals, path = str(value).rpartition("=")
    if isinstance(value, str | Path) and (Path(path).is_absolute() or ".." in Path(path).parts):
        return f"{name}{equals}{Path(path).name}"
    return value


def commit() -> str:
    """Return the commit that is checked out, and whether files in src/ differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain", "--", "src") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"Python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> Machine:
    """Describe the computer that this runs on."""
    facts = _cpuinfo()
    processor = facts.get("model name") or platform.processor() or "unknown processor"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    family = [facts[key] for key in ("cpu family", "model") if key in facts]
    maker = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(facts.get("vendor_id", ""), platform.machine())
    return Machine(
        name="-".join([maker, *family, f"{cores}c"]),
        processor=f"{processor} (family {', model '.join(family)})" if family else processor,
        cores=cores,
        flags=[flag for flag in FLAGS if flag in facts.get("flags", "").split()],
        system=f"{platform.system()} {platform.machine()}",
    )


def _cpuinfo() -> dict[str, str]:
    """Return what Linux says of the last core; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}

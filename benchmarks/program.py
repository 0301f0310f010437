"""The frame of the benchmarks: a program yields rows; its command line, its threads and its result are made here.

Nothing heavy is imported before it is needed, so that ``--help`` is quick and works without the extras.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import results
from results import ROOT, Row

DEFAULT_SET = "librispeech-test-other"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Args, Parser = argparse.Namespace, argparse.ArgumentParser


def main(
    rows: Callable[[Args], Iterable[Row]],
    options: Callable[[Parser], None] = lambda parser: None,
    *,
    model: str | None = None,
    sets: tuple[str, ...] = (),
    needs: tuple[str, ...] = ("harken",),
    packages: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
) -> None:
    """Run a benchmark, whose rows come from the arguments; an error of harken becomes one line.

    The module of `rows` describes the program, and `options` adds its own arguments. `model` and `sets` are defaults of
    ``--model`` and ``--set``: without them there are no such arguments. It `needs` modules. The result has versions of
    `packages`, beside `results.PACKAGES`, and the arguments that `settings` names, beside the model and the threads.
    """
    described = sys.modules[rows.__module__].__doc__
    parser = Parser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--audio", type=Path, metavar="DIR", default=ROOT.parent / "shared" / "audio",
        help="folder of sets, each with a manifest.jsonl (../shared/audio beside the repository)",
    )  # fmt: skip
    add(parser, "--threads", 2, "threads of each engine")
    parser.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.json")
    if model:
        add(parser, "--model", model, "name or path of a model")
    if sets:
        add(parser, "--set", sets, "sets")
        parser.add_argument(
            "--limit", type=positive, metavar="N", help="only N recordings of a set, spread evenly"
        )
    options(parser)
    args = parser.parse_args()
    require(*needs)
    limit_threads(args.threads)
    known = [each for each in ("model", "threads", *settings) if hasattr(args, each)]
    shown = {each.replace("_", " "): getattr(args, each) for each in known}
    result = results.begin(args.save or "", shown, packages)
    from harken.errors import HarkenError

    try:
        for row in rows(args):
            result.add(**row)
    except HarkenError as error:
        stop(str(error))
    if args.save:
        print(results.write(result))


def add(parser: Parser, name: str, default: Any, help: str, *, choices: Iterable[Any] | None = None) -> None:
    """Add an argument whose type is that of its default: a flag, a number from 1 on, a text or none, or several."""
    if isinstance(default, bool):
        parser.add_argument(name, action="store_true", help=help)
        return
    several = isinstance(default, tuple)
    values = default if several else (default,) if default is not None else ()
    kind = {int: positive, float: float}.get(type(values[0]), str) if values else str
    shown = f" ({' '.join(map(str, values))})" if values else ""
    parser.add_argument(
        name, type=kind, default=[*default] if several else default, nargs="+" if several else None, choices=choices,
        metavar=None if choices else name.rpartition("-")[2][0].upper(), help=f"{help}{shown}",
    )  # fmt: skip


def positive(text: str) -> int:
    """Return an integer from 1 on, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: allowed is an integer from 1 on")
    return value


def stop(message: str) -> NoReturn:
    """End the program with one line."""
    sys.exit(f"{Path(sys.argv[0]).name}: {message}")


def note(message: str) -> None:
    """Print a message about progress on standard error."""
    print(message, file=sys.stderr, flush=True)


def require(*modules: str) -> None:
    """Stop unless all modules can be imported."""
    missing = [module for module in dict.fromkeys(modules) if not importable(module)]
    if missing:
        stop(f"cannot import {', '.join(missing)}: pip install -e '.[bench]'")


def importable(module: str) -> bool:
    """Return whether a top-level module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def harken_command(args: Args, name: str, *arguments: object) -> list[str]:
    """Return the command line of a command of harken with a program's model and threads."""
    code = "import sys; from harken.__main__ import run; sys.exit(run())"
    options = "--model", args.model, "--threads", str(args.threads)
    return [sys.executable, "-c", code, name, *options, *map(str, arguments)]


def limit_threads(threads: int) -> dict[str, str]:
    """Return an environment in which libraries of linear algebra use that many threads; also set it for this process.

    Such libraries read it when they are loaded, so this comes before numpy is imported.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return dict(os.environ)


def spread(name: str, values: Sequence[float], digits: int = 3) -> Row:
    """Return the median of the turns and their range, as three columns."""
    return {
        name: round(median(values), digits),
        f"{name}_low": round(min(values), digits),
        f"{name}_high": round(max(values), digits),
    }


def ratios(own: Sequence[float], first: Sequence[float]) -> list[float]:
    """Return the ratio of each turn to that of another one in the same round."""
    return [one / other for one, other in zip(own, first, strict=True)]


def percentiles(name: str, values: Sequence[float]) -> Row:
    """Return percentiles of some seconds, a column each; None where there are no values."""
    import numpy as np

    return {
        f"{name}_{which}_s": round(float(np.percentile(values, which)), 3) if values else None
        for which in (50, 95, 99)
    }


def percent(rate: float | None) -> float | None:
    """Return a rate in percent; None where there is none."""
    return None if rate is None else round(100 * rate, 3)


def peak_mb() -> float:
    """Return the most memory that this process has had resident, in MB; nan where the system is not Linux.

    Not `ru_maxrss`, which has the memory of the program before, where one process image replaces another.
    """
    status = Path("/proc/self/status")
    text = status.read_text(encoding="utf-8") if status.exists() else "VmHWM: nan"
    return float(text.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

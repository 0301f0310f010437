"""Command lines of the benchmarks: arguments that all share, messages, required packages, threads.

Nothing heavy is imported before it is needed, so that ``--help`` is quick and works without the extras.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "jfk.flac"
DEFAULT_SET = "librispeech-test-other"
COMMAND = [sys.executable, "-c", "import sys; from harken.cli import main; sys.exit(main())"]
"""Command line that does what the console script `harken` does."""


def run(main: Callable[[], None]) -> None:
    """Run a program; an error of harken becomes one line."""
    try:
        main()
    except Exception as error:
        from harken.errors import HarkenError

        if isinstance(error, HarkenError):
            stop(str(error))
        raise


def run_folder(folder: Path) -> None:
    """Run the program of a folder that the command line names: python benchmarks/FOLDER NAME [options]."""
    names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python benchmarks/{folder.name} {{{','.join(names)}}} [options]")
    name = sys.argv.pop(1)
    sys.argv[0] = f"{folder} {name}"  # the name in usage, and in the command of a result
    run(importlib.import_module(f"{folder.name}.{name}").main)


def stop(message: str) -> NoReturn:
    """End the program with one line."""
    sys.exit(f"{Path(sys.argv[0]).name}: {message}")


def note(message: str) -> None:
    """Print a message about progress on standard error."""
    print(message, file=sys.stderr, flush=True)


def require(*modules: str) -> None:
    """Stop unless all modules can be imported."""
    missing = [module for module in modules if not importable(module)]
    if missing:
        stop(f"cannot import {', '.join(missing)}: pip install -e '.[bench]'")


def importable(module: str) -> bool:
    """Return whether a top-level module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def parser(doc: str | None, *, model: str | None = None, sets: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all programs share.

    Parameters
    ----------
    doc : str
        Docstring of the program, its description.
    model : str, optional
        Default of ``--model``; without one there is no such argument.
    sets : tuple of str
        Defaults of ``--set`` and then of ``--limit``; without any there are no such arguments.
    """
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--audio", type=Path, metavar="DIR", default=ROOT.parent / "shared" / "audio",
        help="folder of sets, each with a manifest.jsonl (../shared/audio beside the repository)",
    )  # fmt: skip
    options.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of each engine (2)")
    options.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.json")
    if model:
        options.add_argument("--model", default=model, metavar="M", help=f"name or path of a model ({model})")
    if sets:
        options.add_argument(
            "--set", nargs="+", default=[*sets], metavar="NAME", help=f"sets ({' '.join(sets)})"
        )
        options.add_argument(
            "--limit", type=positive, metavar="N", help="only N recordings of a set, spread evenly"
        )
    return options


def positive(text: str) -> int:
    """Return an integer from 1 on, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: allowed is an integer from 1 on")
    return value


def limit_threads(threads: int) -> dict[str, str]:
    """Return an environment in which libraries of linear algebra use that many threads; also set it for this process.

    Such libraries read it when they are loaded, so this comes before numpy is imported.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    os.environ.update(dict.fromkeys(names, str(threads)))
    return dict(os.environ)

"""Run one of the programs of this folder: python benchmarks/FOLDER NAME [options]."""

import sys
from importlib import import_module
from pathlib import Path

folder = Path(__file__).resolve().parent
names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
if len(sys.argv) < 2 or sys.argv[1] not in names:
    sys.exit(f"usage: python benchmarks/{folder.name} {{{','.join(names)}}} [options]")
name = sys.argv.pop(1)
sys.argv[0] = f"{folder} {name}"  # the name in usage, and in the command of a result
sys.path[0] = str(folder.parent)
import_module("arguments").run(import_module(f"{folder.name}.{name}").main)

"""Run one of the programs of this folder: python benchmarks/FOLDER NAME [options]."""

import sys
from importlib import import_module
from pathlib import Path

folder = Path(__file__).resolve().parent
sys.path[0] = str(folder.parent)
import_module("arguments").run_folder(folder)

"""Makes harken and the helpers of the tests importable in a program that is run by its path."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path += [str(_ROOT / "tests"), str(_ROOT / "src")]

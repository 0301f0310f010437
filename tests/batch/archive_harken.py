"""The command with a recogniser for tests, also in its worker processes, whose main module this file is."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.archive_recognizer import load
from harken.batch import worker

worker.load = load

if __name__ == "__main__":
    from harken.__main__ import run

    run()

"""The embedded tiny.en in the CPU engine, loaded once for all the tests that ask for it."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import harken
from harken.errors import CheckpointNotFound

EXAMPLE = Path(__file__).parents[1] / "examples" / "jfk.flac"

# Graphs of its own, so that what is tested is what this source builds, not what an older one has left behind.
_graphs = TemporaryDirectory(prefix="harken-tests-", ignore_cleanup_errors=True)
atexit.register(_graphs.cleanup)


@cache
def recognizer(precision: str) -> harken.Recognizer:
    """Load in the given precision, or skip where the model is missing."""
    try:
        return harken.load("tiny.en", precision=precision, cache=_graphs.name, download=False)
    except CheckpointNotFound as error:
        pytest.skip(str(error))

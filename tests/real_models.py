"""Published models and recordings: tiny.en, which comes with harken, and others where they can be had."""

from __future__ import annotations

import atexit
import json
import os
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import harken
from harken.checkpoints import resolve_model
from harken.errors import CheckpointNotFound

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "jfk.flac"
EXAMPLE_WORDS = [
    *("and", "so", "my", "fellow", "americans", "ask", "not", "what", "your", "country", "can", "do"),
    *("for", "you", "ask", "what", "you", "can", "do", "for", "your", "country"),
]
SHARED = Path(os.environ.get("HARKEN_SHARED", ROOT.parent / "shared"))
"""Folder with recordings under audio/."""

# A cache of its own, so that no graph of older source code is tested; the workers of a run inherit it.
if "HARKEN_TESTS_CACHE" not in os.environ:
    _folder = TemporaryDirectory(prefix="harken-tests-", ignore_cleanup_errors=True)
    atexit.register(_folder.cleanup)
    os.environ["HARKEN_TESTS_CACHE"] = _folder.name
CACHE = Path(os.environ["HARKEN_TESTS_CACHE"])
"""Value of HARKEN_CACHE for tests of published models."""


def model_path(name: str) -> Path:
    """Return the path of the embedded tiny.en or of a model under HARKEN_MODELS; skip where it is missing."""
    if name == "tiny.en":
        try:
            return resolve_model(name, download=False)
        except CheckpointNotFound as error:
            pytest.skip(str(error))
    root = os.environ.get("HARKEN_MODELS")
    if not root:
        pytest.skip("HARKEN_MODELS does not name a directory of models")
    path = Path(root) / name
    if not path.is_dir():
        pytest.skip(f"HARKEN_MODELS has no {name}")
    return path


@cache
def recognizer(precision: str) -> harken.Recognizer:
    """Load tiny.en in the given precision, or skip where it is missing."""
    return _load("tiny.en", precision)


@lru_cache(maxsize=1)
def larger_recognizer(model: str) -> harken.Recognizer:
    """Load another model in float32, or skip where it is missing; only the last one is kept."""
    return _load(model, "fp32")


def _load(model: str, precision: str) -> harken.Recognizer:
    threads = 1 if "PYTEST_XDIST_WORKER" in os.environ else None  # workers share the processors
    return harken.load(
        model_path(model), precision=precision, threads=threads, cache=CACHE / "graphs", download=False
    )


def recordings(folder: str) -> list[Path]:
    """Return the files of a set of recordings; skip the test where it is missing."""
    manifest = SHARED / "audio" / folder / "manifest.jsonl"
    if not manifest.is_file():
        pytest.skip(f"{manifest} is missing")
    entries = manifest.read_text(encoding="utf-8").splitlines()
    return [manifest.parent / json.loads(entry)["audio"] for entry in entries]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return "".join(letter if letter.isalnum() or letter == "'" else " " for letter in text.lower()).split()

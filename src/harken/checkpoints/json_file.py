"""Reading of JSON files beside the weights, and of JSON headers."""

from __future__ import annotations

import json
from pathlib import Path

from harken.checkpoints.storage import read_error
from harken.errors import CheckpointError


def parse_object(path: Path, text: str | bytes) -> dict[str, object]:
    """Parse a JSON object; raise a `CheckpointError` that names `path` for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(value).__name__}, allowed is an object")
    return value


def read_object(path: Path, *, optional: bool = False) -> dict[str, object]:
    """Read a file that contains a JSON object; return an empty one if an `optional` file does not exist."""
    try:
        return parse_object(path, path.read_bytes())
    except FileNotFoundError:
        if optional:
            return {}
        raise CheckpointError(f"{path}: is missing") from None
    except OSError as error:
        raise read_error(path, error) from error

"""Reading the JSON that lies beside weights, or at their head."""

from __future__ import annotations

import json
from pathlib import Path

from harken.checkpoints.storage import read_error
from harken.errors import CheckpointError


def parse_object(path: Path, text: str | bytes) -> dict[str, object]:
    """Parse a JSON object; anything else is a `CheckpointError` that names `path`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(value).__name__}, allowed is an object")
    return value


def read_object(path: Path, *, optional: bool = False) -> dict[str, object]:
    """Read a file that holds a JSON object; an `optional` file that does not exist is an empty object."""
    try:
        return parse_object(path, path.read_bytes())
    except FileNotFoundError:
        if optional:
            return {}
        raise CheckpointError(f"{path}: is missing") from None
    except OSError as error:
        raise read_error(path, error) from error

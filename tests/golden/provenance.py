"""What every recorded file says of itself: the reference, the versions, the command and the day."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def provenance(**references: str | dict[str, str]) -> dict[str, Any]:
    """Return the head of a recorded file; computing goes on in one thread, with the same random numbers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return {
        **references,
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "command": "PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/"
        + Path(sys.argv[0]).name,
        "date": datetime.now(UTC).date().isoformat(),
    }


def sha256(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of concatenated files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()

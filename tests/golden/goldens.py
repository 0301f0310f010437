"""The recorded files: tests read them, and recorders write them with a note of where they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent


def read_json(name: str) -> Any:
    """Read tests/golden/NAME.json."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def write_json(name: str, text: str) -> None:
    """Write tests/golden/NAME.json, of which the recorder has chosen the line breaks."""
    (HERE / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def read_arrays(name: str) -> dict[str, NDArray[Any]]:
    """Read tests/golden/data/NAME.npz."""
    with np.load(HERE / "data" / f"{name}.npz") as recorded:
        return dict(recorded)


def write_arrays(name: str, arrays: Mapping[str, Any], *provenance: str) -> None:
    """Write tests/golden/data/NAME.npz, with lines that say what computed it, from what, and by which command."""
    np.savez_compressed(HERE / "data" / f"{name}.npz", **arrays, provenance=np.array(provenance))


def sha256(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of concatenated files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()

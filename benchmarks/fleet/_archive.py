"""An archive that might be: the lengths of its recordings, drawn from those of real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harken.contract import Floats

LONGEST_S = 5 * 3600.0


@dataclass(frozen=True)
class Kind:
    """Recordings of one kind.

    Parameters
    ----------
    name : str
    share : float
        Its share of the hours.
    median_s : float
        Median length; those of the recordings that are drawn are scaled to it.
    spread : float
        Standard deviation of the logarithm of a factor on each length.
    """

    name: str
    share: float
    median_s: float
    spread: float


KINDS = (
    Kind("messages", 0.02, 8, 0.2),
    Kind("calls", 0.48, 240, 0.5),
    Kind("podcasts", 0.30, 2100, 0.3),
    Kind("lectures", 0.20, 3000, 0.2),
)


def recorded_seconds(audio: Path) -> list[float]:
    """Return the lengths of all recordings of the sets in a folder."""
    manifests = sorted(audio.glob("*/manifest.jsonl"))
    lines = [line for path in manifests for line in path.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["seconds"] for line in lines]


def draw_lengths(recorded: Sequence[float], hours: float, seed: int = 0) -> Iterator[tuple[str, Floats]]:
    """Yield each kind of recordings with its lengths in seconds, which are `hours` together."""
    import numpy as np

    random = np.random.default_rng(seed)
    for kind in KINDS:
        wanted_s, scale = kind.share * hours * 3600, kind.median_s / np.median(recorded)
        size = int(wanted_s / kind.median_s) + 1  # the mean is greater than the median
        lengths = scale * random.choice(recorded, size) * random.lognormal(0, kind.spread, size)
        lengths = lengths.clip(1, LONGEST_S)
        yield kind.name, lengths[: int(np.searchsorted(lengths.cumsum(), wanted_s)) + 1]


def write_manifest(to: Path, recorded: Sequence[float], hours: float, *, mixed: bool, seed: int = 0) -> int:
    """Write the manifest of an archive, one kind behind the other or mixed; return the number of recordings."""
    import numpy as np

    lines = [
        json.dumps({"audio_filepath": f"{name}/{i // 1000:04d}/{i:07d}.mp3", "duration": round(float(s), 2)})
        for name, lengths in draw_lengths(recorded, hours, seed)
        for i, s in enumerate(lengths)
    ]
    order = np.random.default_rng(seed).permutation(len(lines)) if mixed else range(len(lines))
    with to.open("w", encoding="utf-8") as file:
        file.writelines(lines[i] + "\n" for i in order)
    return len(lines)

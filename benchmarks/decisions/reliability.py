"""Reliability of detected languages: the share that is right, by the probability of the detected language.

Recordings are detected whole, as ``harken transcribe`` does without ``--language``. Where a probability is calibrated,
of the recordings with a probability near p a share of p is right. ``--picture`` draws both.

    python benchmarks/decisions reliability --models tiny base --picture docs/images/language-reliability.svg
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import results
from arguments import limit_threads, parser, require
from errors import SETS
from recordings import read_set

EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Bounds of the classes of probabilities."""


def main() -> None:
    options = parser(__doc__, sets=SETS)
    options.add_argument("--models", nargs="+", default=["tiny"], metavar="M", help="names or paths (tiny)")
    options.add_argument("--picture", type=Path, metavar="PATH", help="draw the classes into this file")
    args = options.parse_args()
    require("harken", *(["matplotlib"] if args.picture else []))
    limit_threads(args.threads)
    result = results.begin(args.save or "reliability", {"threads": args.threads})
    entries = [entry for name in args.set for entry in read_set(args.audio, name, args.limit)]
    for model in args.models:
        detected = [*detect(model, args.threads, entries)]
        for row in classes(detected):
            result.add(model=Path(model).name, **row)
    if args.save:
        print(results.write(result))
    if args.picture:
        draw(result.rows, args.picture)


def detect(model: str, threads: int, entries: list[Any]) -> Iterator[tuple[float, bool]]:
    """Yield the probability of the language that is detected in each recording with speech, and if it is right."""
    import harken

    recognizer = harken.load(model, threads=threads)
    for entry in entries:
        probabilities = recognizer.detect_language(entry.path)
        if probabilities:
            code, probability = next(iter(probabilities.items()))
            yield probability, code == entry.language


def classes(detected: list[tuple[float, bool]]) -> Iterator[dict[str, Any]]:
    """Yield the mean probability and the share that is right, for each class of probabilities and for all."""
    for low, high in (*pairwise(EDGES), (EDGES[0], EDGES[-1])):
        members = [
            (probability, right)
            for probability, right in detected
            if low <= probability < high or probability == high == EDGES[-1]
        ]
        if members:
            probabilities, right = zip(*members, strict=True)
            yield {
                "from": low,
                "to": high,
                "recordings": len(members),
                "probability_percent": round(100 * sum(probabilities) / len(members), 1),
                "right_percent": round(100 * sum(right) / len(members), 1),
            }


def draw(rows: list[dict[str, Any]], to: Path) -> None:
    """Draw the share that is right over the probability, a line for each model."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(4.5, 4), layout="constrained")).subplots()
    axes.plot([0, 100], [0, 100], color="0.7", linewidth=1, label="calibrated")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model and (row["from"], row["to"]) != (0.0, 1.0)]
        axes.plot(
            [row["probability_percent"] for row in own],
            [row["right_percent"] for row in own],
            marker="o",
            label=model,
        )
    axes.set(xlabel="probability of the detected language, %", ylabel="right, %", xlim=(0, 100), ylim=(0, 102))
    axes.legend(frameon=False)
    figure.savefig(to, metadata={"Date": None})

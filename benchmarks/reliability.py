"""Reliability of detected languages: the share that is right, by the probability of the detected language.

Recordings are detected whole, as ``harken transcribe`` does without ``--language``. Where a probability is calibrated,
of the recordings with a probability near p a share of p is right.

    python benchmarks/reliability.py --models tiny base --save reliability
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from errors import SETS
from program import Args, Program, Row, add, main
from recordings import read_set

EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Bounds of the classes of probabilities."""


def options(parser: argparse.ArgumentParser) -> None:
    add(parser, "--models", ("tiny",), "names or paths of models")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each model and class of probabilities."""
    entries = [entry for name in args.set for entry in read_set(args.audio, name, args.limit)]
    for model in args.models:
        for row in classes([*detect(model, args.threads, entries)]):
            yield {"model": Path(model).name} | row


def detect(model: str, threads: int, entries: list[Any]) -> Iterator[tuple[float, bool]]:
    """Yield the probability of the language that is detected in each recording with speech, and if it is right."""
    import harken

    recognizer = harken.load(model, threads=threads)
    for entry in entries:
        probabilities = recognizer.detect_language(entry.path)
        if probabilities:
            code, probability = next(iter(probabilities.items()))
            yield probability, code == entry.language


def classes(detected: list[tuple[float, bool]]) -> Iterator[Row]:
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


if __name__ == "__main__":
    main(Program(doc=__doc__, name="reliability", rows=rows, options=options, sets=SETS))

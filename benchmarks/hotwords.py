"""Hotwords given as a prompt, as a bias, or as both: which names are found, what else changes, what leaks.

All names are given with every recording: those in which some are said, and others. *found* counts those that were said
and written, *invented* those that were written and not said. *leaks* counts recordings without speech in which a name
is written in the first attempt, whatever the thresholds say of that.

    python benchmarks/hotwords.py --model tiny.en
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from common import Recording, machine, parser, positive, read_set, require, run, table, word_error_rate

SETS = ("librispeech-test-other", "librispeech-train-clean", "arctic")
NAMES = (
    "Allington", "d'Artagnan", "Avonlea", "Bancroft", "Bibbs", "Cavell", "Chebec", "Coronel", "Danglars", "Delmonico",
    "Donnithorne", "Eames", "Ephraim", "Falk", "Fuegians", "Gregg", "Gregson", "Guasimas", "Harrison", "Helstone",
    "Ilyin", "Isabel", "Jeanne", "Leoni", "Spoleto", "Lynde", "Manasseh", "Marguerite", "Merneptah", "Milltown",
    "Motley", "Nakata", "Niihau", "Nuzhat", "Patino", "Petya", "Phronsie", "Ponsonby", "Rawdon", "Roby", "Rosebreast",
    "Rostov", "Rubezahl", "Sonya", "Steventon", "Uncas", "Villefort", "Whittemore", "Yorke", "Zaman",
)  # fmt: skip
"""Names that tiny.en gets wrong somewhere in the sets."""
SOUGHT = {re.sub(r".*'", "", name).lower() for name in NAMES}
PROMPT: dict[str, Any] = {"initial_prompt": ", ".join(NAMES), "carry_initial_prompt": True}
BIAS: dict[str, Any] = {"hotwords": NAMES}
METHODS: dict[str, dict[str, Any]] = {"nothing": {}, "prompt": PROMPT, "bias": BIAS, "both": PROMPT | BIAS}
UNGUARDED: dict[str, Any] = {
    "vad": False, "hallucination_threshold": None, "no_speech_threshold": None, "temperatures": (0.0,),
    "logprob_threshold": None, "compression_ratio_threshold": None,
}  # fmt: skip


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", help="name or path (tiny.en)")
    its.add_argument("--beam-size", type=positive, default=1, metavar="N", help="1 is greedy (1)")
    its.add_argument("--others", type=positive, default=12, metavar="N", help="recordings without names (12)")
    args = its.parse_args()
    require("harken", "jiwer", "whisper_normalizer")
    import harken

    print(machine())
    recognizer = harken.load(args.model, threads=args.threads)
    recordings = choose(args.audio, args.others)
    quiet = sorted(path for path in (args.audio / "non-speech").iterdir() if path.suffix != ".jsonl")
    rows = []
    for name, options in METHODS.items():
        texts = [
            recognizer.transcribe(its.path, beam_size=args.beam_size, **options).text for its in recordings
        ]
        leaks = [recognizer.transcribe(path, **options, **UNGUARDED).text for path in quiet]
        rows.append([name, *score(recordings, texts), str(sum(bool(names(text)) for text in leaks))])
        header = ("hotwords as", "found", "of", "invented", "WER, %", f"leaks, of {len(quiet)}")
        print(f"\n{table(header, rows)}", flush=True)


def choose(audio: Path, others: int) -> list[Recording]:
    """Recordings in which names are said, and some of the others."""
    everything = list(chain.from_iterable(read_set(audio, name) for name in SETS))
    named = [its for its in everything if names(its.text)]
    return named + [its for its in everything if not names(its.text)][:others]


def names(text: str) -> Counter[str]:
    """Which of the names stand in a text, and how often."""
    return Counter(word for word in re.findall("[a-z]+", text.lower()) if word in SOUGHT)


def score(recordings: Sequence[Recording], texts: Sequence[str]) -> list[str]:
    """Names found, said and invented, and the word error rate."""
    said, written = [names(its.text) for its in recordings], [*map(names, texts)]
    pairs = list(zip(said, written, strict=True))
    counts = (
        sum((its & found).total() for its, found in pairs),
        sum(its.total() for its in said),
        sum((found - its).total() for its, found in pairs),
    )
    return [*map(str, counts), f"{word_error_rate([its.text for its in recordings], texts):.2f}"]


if __name__ == "__main__":
    run(main)

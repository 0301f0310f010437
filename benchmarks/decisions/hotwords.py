"""Hotwords given as a prompt, as a bias, or as both: names found, names invented, other errors, leaks.

All names are given with every recording: those in which some are spoken, and others. `found` counts names that were
spoken and written, `invented` those written but not spoken. `leaks` counts recordings without speech in which a name is
written in the first attempt, whatever the thresholds decide about that.

    python benchmarks/decisions hotwords --model tiny.en
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, parser, positive, require
from recordings import NON_SPEECH, error_percent, read_set

if TYPE_CHECKING:
    from harken.manifests import Entry

SETS = ("librispeech-test-other", "librispeech-train-clean", "arctic")
NAMES = (
    "Allington", "d'Artagnan", "Avonlea", "Bancroft", "Bibbs", "Cavell", "Chebec", "Coronel", "Danglars", "Delmonico",
    "Donnithorne", "Eames", "Ephraim", "Falk", "Fuegians", "Gregg", "Gregson", "Guasimas", "Harrison", "Helstone",
    "Ilyin", "Isabel", "Jeanne", "Leoni", "Spoleto", "Lynde", "Manasseh", "Marguerite", "Merneptah", "Milltown",
    "Motley", "Nakata", "Niihau", "Nuzhat", "Patino", "Petya", "Phronsie", "Ponsonby", "Rawdon", "Roby", "Rosebreast",
    "Rostov", "Rubezahl", "Sonya", "Steventon", "Uncas", "Villefort", "Whittemore", "Yorke", "Zaman",
)  # fmt: skip
"""Names that tiny.en gets wrong somewhere in the sets."""
LOWER_NAMES = {re.sub(r".*'", "", name).lower() for name in NAMES}
PROMPT: dict[str, Any] = {"initial_prompt": ", ".join(NAMES), "carry_initial_prompt": True}
BIAS: dict[str, Any] = {"hotwords": NAMES}
METHODS: dict[str, dict[str, Any]] = {"nothing": {}, "prompt": PROMPT, "bias": BIAS, "both": PROMPT | BIAS}
UNGUARDED: dict[str, Any] = {
    "vad": False, "hallucination_threshold": None, "no_speech_threshold": None, "temperatures": (0.0,),
    "logprob_threshold": None, "compression_ratio_threshold": None,
}  # fmt: skip


def main() -> None:
    options = parser(__doc__, model="tiny.en", sets=SETS)
    options.add_argument("--beam-size", type=positive, default=1, metavar="N", help="1 is greedy (1)")
    options.add_argument(
        "--others", type=positive, default=12, metavar="N", help="recordings without names (12)"
    )
    args = options.parse_args()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    import harken

    settings = {"model": args.model, "beam size": args.beam_size, "threads": args.threads}
    result = results.begin(args.save or "hotwords", settings)
    recognizer = harken.load(args.model, threads=args.threads)
    everything = chain.from_iterable(
        read_set(args.audio, name, args.limit, model=args.model) for name in args.set
    )
    entries = choose([*everything], args.others)
    quiet = read_set(args.audio, NON_SPEECH, args.limit, speech=False)
    for method, keywords in METHODS.items():
        texts = [
            recognizer.transcribe(entry.path, beam_size=args.beam_size, **keywords).text for entry in entries
        ]
        leaks = [recognizer.transcribe(entry.path, **keywords, **UNGUARDED).text for entry in quiet]
        result.add(
            hotwords=method,
            recordings=len(entries),
            **count(entries, texts),
            error_percent=error_percent(entries, texts),
            quiet=len(quiet),
            leaks=sum(bool(names(text)) for text in leaks),
        )
    if args.save:
        print(results.write(result))


def choose(entries: Sequence[Entry], others: int) -> list[Entry]:
    """Return the recordings in which names are spoken, and some of the others."""
    named = [entry for entry in entries if names(entry.text)]
    return named + [entry for entry in entries if not names(entry.text)][:others]


def names(text: str) -> Counter[str]:
    """Count the names in a text."""
    return Counter(word for word in re.findall("[a-z]+", text.lower()) if word in LOWER_NAMES)


def count(entries: Sequence[Entry], texts: Sequence[str]) -> dict[str, int]:
    """Count the names found, spoken and invented."""
    pairs = [(names(entry.text), names(text)) for entry, text in zip(entries, texts, strict=True)]
    return {
        "found": sum((spoken & written).total() for spoken, written in pairs),
        "spoken": sum(spoken.total() for spoken, _ in pairs),
        "invented": sum((written - spoken).total() for spoken, written in pairs),
    }

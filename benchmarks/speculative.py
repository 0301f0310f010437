"""Speculative decoding beside plain decoding: time, acceptance and texts, by set, language and source of drafts.

A source is an assistant as ``--assistant`` names it, or a text as ``--draft`` gives it: ``reference`` is that of the
manifest, ``transcript`` what plain decoding has written. Every recording is transcribed plainly and with each source,
in turns; the least time of each counts, as other work only adds to it. ``different`` counts texts that are not those of
plain decoding, of which there must be none.

    python benchmarks/speculative.py --model small --source tiny reference --limit 10 --save speculative
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING, Any

from program import DEFAULT_SET, Args, Parser, Row, add, main, note, percent
from recordings import read_sets

if TYPE_CHECKING:
    from harken.api import Recognizer

PLAIN, REFERENCE, TRANSCRIPT = "plain", "reference", "transcript"


@dataclass(slots=True)
class Run:
    """A recording with one source of drafts: the least seconds, and the text and the counts of the last turn."""

    decode_s: float = float("inf")
    seconds: float = float("inf")
    text: str = ""
    stats: Any = field(default=None)


def options(parser: Parser) -> None:
    add(parser, "--source", ("tiny", REFERENCE, TRANSCRIPT), "assistants, reference, transcript")
    add(parser, "--repeats", 2, "turns")
    add(parser, "--beam-size", 1, "hypotheses of the beam search")
    add(parser, "--batch-size", 1, "windows decoded together")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each set, language and source."""
    import harken

    loaded = {
        source: harken.load(args.model, assistant=source, threads=args.threads)
        for source in args.source
        if source not in (REFERENCE, TRANSCRIPT)
    }
    plain = harken.load(args.model, assistant=None, threads=args.threads)
    entries = sorted(read_sets(args), key=lambda pair: (pair[0], pair[1].language or ""))
    for (name, language), group in groupby(entries, key=lambda pair: (pair[0], pair[1].language or "")):
        runs: dict[str, list[Run]] = {source: [] for source in (PLAIN, *args.source)}
        for _, entry in group:
            taken = {source: Run() for source in runs}
            for _ in range(args.repeats):
                for source, run in taken.items():
                    draft = {REFERENCE: entry.text, TRANSCRIPT: taken[PLAIN].text}.get(source)
                    sizes = {"beam_size": args.beam_size, "batch_size": args.batch_size}
                    transcribe(loaded.get(source, plain), entry, draft, sizes, run)
            for source, run in taken.items():
                runs[source].append(run)
        note(f"{name}, {language}: {len(runs[PLAIN])} recordings")
        for source in args.source:
            yield {"set": name, "language": language, "source": source} | compare(runs[PLAIN], runs[source])


def transcribe(
    recognizer: Recognizer, entry: Any, draft: str | None, sizes: Mapping[str, Any], run: Run
) -> None:
    """Transcribe a recording and keep its least times."""
    began_s = perf_counter()
    transcription = recognizer.transcribe(entry.path, language=entry.language, draft=draft, **sizes)
    run.text = transcription.text
    run.seconds = min(run.seconds, perf_counter() - began_s)
    run.stats = transcription.stats
    run.decode_s = min(run.decode_s, run.stats.decode_s)


def compare(plain: list[Run], drafted: list[Run]) -> Row:
    """Return how much faster drafting is, and what was accepted."""
    pairs = list(zip(plain, drafted, strict=True))
    stats = [run.stats for run in drafted]
    proposed, accepted = (sum(getattr(each, name) for each in stats) for name in ("drafted", "accepted"))
    return {
        "recordings": len(pairs),
        "decode_s": round(sum(run.decode_s for run in plain), 2),
        "decoding": round(sum(run.decode_s for run in plain) / sum(run.decode_s for run in drafted), 3),
        "all": round(sum(run.seconds for run in plain) / sum(run.seconds for run in drafted), 3),
        "worst": round(min(one.seconds / other.seconds for one, other in pairs), 3),
        "accepted_percent": percent(accepted / proposed if proposed else None),
        "tokens a pass": round(sum(s.sampled_tokens for s in stats) / sum(s.forwards for s in stats), 2),
        "different": sum(one.text != other.text for one, other in pairs),
    }


if __name__ == "__main__":
    main(rows, options, model="small", sets=(DEFAULT_SET,), settings=("beam_size", "batch_size", "repeats"))

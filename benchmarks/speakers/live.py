"""Measure live diarization on conversations: what it says once the delay has passed, beside that of whole recordings.

    python benchmarks/speakers live FOLDER
    python benchmarks/speakers live FOLDER --half tune --delay 2 5 10 --first 3 --words

FOLDER is what `conversations` wrote. With --words the recordings are transcribed, too, and the final words are counted
whose main speaker an event changes after they were shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import results
from arguments import note, parser, require
from recordings import percent

if TYPE_CHECKING:
    import harken
    from harken.contract import Floats
    from harken.evaluation.speaker_errors import DiarizationErrors
    from harken.results import SpeakerTurn
    from harken.speakers.diarizer import Diarizer

BLOCK_SAMPLES = 1_600


@dataclass
class Tally:
    """The sums over recordings."""

    errors: list[DiarizationErrors] = field(default_factory=list)
    counted_right: int = 0
    cpu_s: float = 0.0
    audio_s: float = 0.0
    words: int = 0
    relabelled: int = 0


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path, metavar="FOLDER", help="conversations")
    options.add_argument("--half", default="report", help="tune or report (report)")
    options.add_argument("--kind", nargs="+", metavar="KIND", help="kinds (all)")
    options.add_argument("--first", type=int, default=3, metavar="N", help="recordings of each kind (3)")
    options.add_argument("--delay", type=float, nargs="+", default=[2.0, 5.0, 10.0], help="delays (2 5 10)")
    options.add_argument("--words", action="store_true", help="count the words whose speaker changes")
    args = options.parse_args()
    require("harken", "scipy")
    result = results.begin(args.save or "speakers-live", {"threads": args.threads}, ("scipy",))
    for row in measure(args):
        result.add(**row)
    if args.save:
        print(results.write(result))


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind and delay, the first without one, and for all kinds together."""
    import harken
    from harken.audio import load_audio
    from harken.evaluation.speaker_errors import count_diarization_errors
    from harken.formats.rttm import read_rttm

    diarizer = harken.load_diarizer(threads=args.threads)
    recognizer = harken.load("tiny.en", threads=args.threads) if args.words else None
    kinds = [
        path for path in sorted((args.folder / args.half).iterdir()) if not args.kind or path.name in args.kind
    ]
    totals = {delay_s: Tally() for delay_s in (None, *args.delay)}
    for kind in kinds:
        tallies = {delay_s: Tally() for delay_s in totals}
        for path in sorted(kind.glob("*.wav"))[: args.first]:
            note(str(path.stem))
            samples, reference = load_audio(path), read_rttm(path.with_suffix(".rttm"))
            for delay_s, tally in tallies.items():
                began_s = process_time()
                turns = (
                    diarizer.diarize(samples).turns
                    if delay_s is None
                    else live_turns(diarizer, samples, delay_s)
                )
                taken_s = process_time() - began_s
                words, relabelled = (
                    changed_words(recognizer, diarizer, samples, delay_s) if recognizer and delay_s else (0, 0)
                )
                for each in (tally, totals[delay_s]):
                    each.errors.append(count_diarization_errors(reference, turns))
                    each.counted_right += len({t.speaker for t in turns}) == len({t.speaker for t in reference})
                    each.cpu_s += taken_s
                    each.audio_s += len(samples) / 16_000
                    each.words += words
                    each.relabelled += relabelled
        yield from rows(kind.name, args.half, tallies)
    yield from rows("all", args.half, totals)


def rows(kind: str, half: str, tallies: dict[float | None, Tally]) -> Iterator[dict[str, Any]]:
    """Yield the figures of a kind."""
    for delay_s, tally in tallies.items():
        speech_s = sum(errors.speech_s for errors in tally.errors)
        yield {
            "half": half,
            "kind": kind,
            "delay_s": delay_s,
            "recordings": len(tally.errors),
            "der_percent": percent(sum(errors.errors for errors in tally.errors) / speech_s),
            "confused_percent": percent(sum(errors.confused_s for errors in tally.errors) / speech_s),
            "counted_right": tally.counted_right,
            "cpu_factor": round(tally.cpu_s / tally.audio_s, 4),
            "words": tally.words or None,
            "relabelled_percent": percent(tally.relabelled / tally.words) if tally.words else None,
        }


def live_turns(diarizer: Diarizer, samples: Floats, delay_s: float) -> list[SpeakerTurn]:
    """Return the turns of a stream, each stretch as it was when the delay had passed."""
    from dataclasses import replace

    diarization = diarizer.begin_live(delay_s)
    turns: list[SpeakerTurn] = []
    before_s = 0.0
    for start in range(0, len(samples), BLOCK_SAMPLES):
        diarization.feed(samples[start : start + BLOCK_SAMPLES])
        settled_s = diarization.settled_s
        if settled_s > before_s:
            turns += [
                replace(turn, start_s=max(before_s, turn.start_s), end_s=min(settled_s, turn.end_s))
                for turn in diarization.turns
                if turn.start_s < settled_s and turn.end_s > before_s
            ]
            before_s = settled_s
    diarization.flush()
    rest = [turn for turn in diarization.turns if turn.end_s > before_s]
    return turns + [replace(turn, start_s=max(before_s, turn.start_s)) for turn in rest]


def changed_words(
    recognizer: harken.Recognizer, diarizer: Diarizer, samples: Floats, delay_s: float
) -> tuple[int, int]:
    """Return the number of final words, and of those whose main speaker changes after they were shown."""
    from harken.streaming import FinalSegment, SpeakersChanged

    session = recognizer.stream(clock=None, diarizer=diarizer, speaker_delay=delay_s)
    shown: dict[int, list[tuple[str, ...]]] = {}
    last: dict[int, list[tuple[str, ...]]] = {}
    for start in range(0, len(samples) + BLOCK_SAMPLES, BLOCK_SAMPLES):
        block = samples[start : start + BLOCK_SAMPLES]
        for event in session.feed(block) if len(block) else session.close():
            if isinstance(event, FinalSegment | SpeakersChanged):
                speakers = [word.speakers[:1] for word in event.segment.words]
                last[event.segment.index] = speakers
                shown.setdefault(event.segment.index, speakers)
    pairs = [pair for index in shown for pair in zip(shown[index], last[index], strict=True)]
    return len(pairs), sum(before != after for before, after in pairs)

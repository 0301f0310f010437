"""Compare harken with other diarizers on conversations, each engine in a process of its own.

    python benchmarks/speakers peers FOLDER
    python benchmarks/speakers peers FOLDER --engine harken senko --python senko=/path/to/python --half tune

FOLDER is what `conversations` wrote. The turns of an engine go to FOLDER/ENGINE/HALF/KIND/NAME.rttm and its times to
FOLDER/ENGINE/HALF/times.jsonl; recordings that are there are not computed again unless --again is given. Differences
are harken minus the other, of the same recordings, with 95 % intervals from resampled recordings.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from arguments import note, parser, require
from recordings import percent
from speakers._engines import LOADERS, Turns, Worker

if TYPE_CHECKING:
    from harken.evaluation.speakers import SpeakerEvaluation

LABELS = {"harken": ("harken",), "senko": ("senko", "senko-raw")}
"""Results of each engine."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording of a kind."""

    half: str
    kind: str
    path: Path


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path, metavar="FOLDER", help="conversations")
    options.add_argument("--engine", nargs="+", choices=LOADERS, default=[*LOADERS], help="engines (all)")
    options.add_argument("--half", nargs="+", default=["report"], help="tune, report or both (report)")
    options.add_argument("--kind", nargs="+", metavar="KIND", help="kinds (all)")
    options.add_argument(
        "--python", nargs="+", default=[], metavar="ENGINE=PATH", help="interpreters with other engines"
    )
    options.add_argument("--again", action="store_true", help="compute all turns again")
    args = options.parse_args()
    require("harken", "scipy")
    recordings = [*find_recordings(args)]
    for engine in args.engine:
        diarize_all(args, engine, recordings)
    result = results.begin(args.save or "speakers-peers", {"threads": args.threads}, ("scipy",))
    for half in args.half:
        for row in compare(args, half, [one for one in recordings if one.half == half]):
            result.add(**row)
    if args.save:
        print(results.write(result))


def find_recordings(args: argparse.Namespace) -> Iterator[Recording]:
    """Yield the recordings of all kinds."""
    for half in args.half:
        for path in sorted((args.folder / half).glob("*/*.wav")):
            if not args.kind or path.parent.name in args.kind:
                yield Recording(half, path.parent.name, path)


def turns_path(folder: Path, label: str, recording: Recording) -> Path:
    """Return where the turns of an engine are."""
    return folder / label / recording.half / recording.kind / f"{recording.path.stem}.rttm"


def diarize_all(args: argparse.Namespace, engine: str, recordings: list[Recording]) -> None:
    """Have an engine diarize what it has not, and keep its turns and times."""
    missing = [
        one
        for one in recordings
        if args.again or not all(turns_path(args.folder, label, one).exists() for label in LABELS[engine])
    ]
    if not missing:
        return
    pythons = dict(pair.split("=", 1) for pair in args.python)
    with Worker(engine, args.threads, Path(pythons.get(engine, sys.executable))) as worker:
        for one in missing:
            reply = worker.diarize(one.path)
            for label, turns in reply.turns.items():
                write_turns(turns_path(args.folder, label, one), turns)
            times = {"name": one.path.stem, "kind": one.kind, "wall_s": reply.seconds, "cpu_s": reply.cpu_s}
            times |= {"peak_mb": reply.peak_mb, "threads": args.threads}
            for label in reply.turns:
                with (args.folder / label / one.half / "times.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(times) + "\n")
            note(f"{engine}: {one.half} {one.path.stem} in {reply.seconds:.1f} s")


def write_turns(path: Path, turns: Turns) -> None:
    """Write turns as RTTM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"SPEAKER {path.stem} 1 {start:.3f} {end - start:.3f} <NA> <NA> {speaker} <NA> <NA>\n"
        for start, end, speaker in sorted(turns)
    ]
    path.write_text("".join(lines), encoding="utf-8")


def compare(args: argparse.Namespace, half: str, recordings: list[Recording]) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind and result, and for all kinds together."""
    from harken.manifests import read_manifests

    kinds = sorted({one.kind for one in recordings})
    seconds = {
        entry.path.stem: entry.seconds or 0.0
        for kind in kinds
        for entry in read_manifests([args.folder / half / kind], needs_text=False)
    }
    labels = [label for engine in args.engine for label in LABELS[engine]]
    for kind in [*kinds, "all"]:
        chosen = [one for one in recordings if kind in (one.kind, "all")]
        evaluations = {label: evaluate(args.folder, label, chosen) for label in labels}
        for label, evaluation in evaluations.items():
            yield (
                {"half": half, "kind": kind, "engine": label, "recordings": len(chosen)}
                | figures(evaluation)
                | difference(evaluations.get("harken"), evaluation)
                | speed(args, label, half, chosen, seconds)
            )


def evaluate(folder: Path, label: str, recordings: list[Recording]) -> SpeakerEvaluation:
    """Score the turns of one engine."""
    from harken.evaluation.speakers import SpeakerHypothesis, score_speakers, summarise_speakers
    from harken.formats.rttm import read_rttm
    from harken.manifests import Entry

    return summarise_speakers(
        score_speakers(
            Entry(name=one.path.stem, path=one.path, text=""),
            read_rttm(one.path.with_suffix(".rttm")),
            SpeakerHypothesis(turns=read_rttm(turns_path(folder, label, one))),
        )
        for one in recordings
    )


def figures(evaluation: SpeakerEvaluation) -> dict[str, Any]:
    """Return the rates in percent, and the recordings whose speakers are counted right."""
    errors = evaluation.errors
    return {
        "der_percent": percent(errors.rate),
        "missed_percent": percent(errors.missed_s / errors.speech_s),
        "false_alarm_percent": percent(errors.false_alarm_s / errors.speech_s),
        "confused_percent": percent(errors.confused_s / errors.speech_s),
        "collar_der_percent": percent(evaluation.collar_errors.rate),
        "jer_percent": percent(evaluation.jer and evaluation.jer.rate),
        "counted_right": evaluation.counted_right,
    }


def difference(first: SpeakerEvaluation | None, second: SpeakerEvaluation) -> dict[str, Any]:
    """Return the difference between two error rates on the same recordings, with its interval, in percent."""
    from harken.evaluation.error_rate import bootstrap_error_rates, confidence_interval

    if first is None or first is second:
        return {"der_difference_percent": None, "low": None, "high": None}
    both = [[score.errors for score in evaluation.scores] for evaluation in (first, second)]
    one, other = map(bootstrap_error_rates, both)
    low, high = confidence_interval(one - other)
    rate = (first.errors.rate or 0.0) - (second.errors.rate or 0.0)
    return {"der_difference_percent": percent(rate), "low": percent(low), "high": percent(high)}


def speed(
    args: argparse.Namespace, label: str, half: str, recordings: list[Recording], seconds: dict[str, float]
) -> dict[str, Any]:
    """Return the time for a second of audio, with the threads that were asked for; None where nobody took it."""
    path = args.folder / label / half / "times.jsonl"
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
    times = {line["name"]: line for line in lines if line["threads"] == args.threads}
    names = [one.path.stem for one in recordings if one.path.stem in times]
    audio_s = sum(seconds[name] for name in names)
    return {
        "real_time_factor": round(sum(times[name]["wall_s"] for name in names) / audio_s, 4) if names else None,
        "cpu_factor": round(sum(times[name]["cpu_s"] for name in names) / audio_s, 4) if names else None,
        "peak_mb": round(max(times[name]["peak_mb"] for name in names)) if names else None,
    }

"""Diarization of the conversations that `conversations` wrote: harken and its peers; live; hours of it.

``peers`` runs each engine in a process of its own. Its turns go to FOLDER/ENGINE/HALF/KIND/NAME.rttm, its times to
FOLDER/ENGINE/HALF/times.jsonl; recordings that are there are not computed again. Differences are harken minus the
other, of the same recordings, with 95 % intervals from resampled recordings. ``live`` measures what live diarization
says once the delay has passed, beside that of whole recordings.

    python benchmarks/diarization.py peers --folder FOLDER --python senko=/path/to/python --save speakers-peers
    python benchmarks/diarization.py live --folder FOLDER --save speakers-live
    python benchmarks/diarization.py hours --folder FOLDER/report/clean-4 --hours 3 --save speakers-hours
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

from engines import DIARIZER, DIARIZERS, Engine, Turns, Worker
from program import Args, Program, Row, add, hours, main, note, percent
from recordings import SAMPLE_RATE

if TYPE_CHECKING:
    from harken.contract import Floats
    from harken.evaluation.speakers import SpeakerEvaluation

LABELS = {"harken": ("harken",), "senko": ("senko", "senko-raw")}
"""Results of each engine."""
BLOCK_SAMPLES = 1_600


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording of a kind."""

    half: str
    kind: str
    path: Path


def folder_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, metavar="FOLDER", help="conversations")
    parser.add_argument("--speaker-model", metavar="DIR", help="folder with the models of harken")
    add(parser, "--half", ("report",), "tune, report or both")
    parser.add_argument("--kind", nargs="+", metavar="KIND", help="kinds (all)")
    parser.add_argument("--first", type=int, metavar="N", help="recordings of each kind (all)")


def find_recordings(args: Args) -> Iterator[Recording]:
    """Yield the recordings of all kinds."""
    for half in args.half:
        for kind in sorted(path for path in (args.folder / half).iterdir() if path.is_dir()):
            if not args.kind or kind.name in args.kind:
                for path in sorted(kind.glob("*.wav"))[: args.first]:
                    yield Recording(half, kind.name, path)


def peers_options(parser: argparse.ArgumentParser) -> None:
    folder_options(parser)
    add(parser, "--engine", tuple(DIARIZERS), "engines", choices=DIARIZERS)
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="ENGINE=PATH", help="interpreters with other engines"
    )


def peers(args: Args) -> Iterator[Row]:
    """Yield a row for each kind and result, and for all kinds together."""
    recordings = [*find_recordings(args)]
    for engine in args.engine:
        diarize_all(args, engine, recordings)
    for half in args.half:
        yield from compare(args, half, [one for one in recordings if one.half == half])


def turns_path(folder: Path, label: str, recording: Recording) -> Path:
    """Return where the turns of an engine are."""
    return folder / label / recording.half / recording.kind / f"{recording.path.stem}.rttm"


def diarize_all(args: Args, engine: str, recordings: list[Recording]) -> None:
    """Have an engine diarize what it has not, and keep its turns and times."""
    missing = [
        one
        for one in recordings
        if not all(turns_path(args.folder, label, one).exists() for label in LABELS[engine])
    ]
    if not missing:
        return
    pythons = dict(pair.split("=", 1) for pair in args.python)
    what = Engine(
        label=engine, kind=engine, model=DIARIZER, precision=args.speaker_model or "", threads=args.threads
    )
    with Worker(what, pythons.get(engine, sys.executable)) as worker:
        for one in missing:
            reply = worker.work(one.path)
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


def compare(args: Args, half: str, recordings: list[Recording]) -> Iterator[Row]:
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


def figures(evaluation: SpeakerEvaluation) -> Row:
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


def difference(first: SpeakerEvaluation | None, second: SpeakerEvaluation) -> Row:
    """Return the difference between two error rates on the same recordings, with its interval, in percent."""
    from harken.evaluation.error_rate import bootstrap_error_rates, confidence_interval

    if first is None or first is second:
        return {"der_difference_percent": None, "low": None, "high": None}
    both = [[score.errors for score in evaluation.scores] for evaluation in (first, second)]
    one, other = map(bootstrap_error_rates, both)
    low, high = confidence_interval(one - other)
    rate = (first.errors.rate or 0.0) - (second.errors.rate or 0.0)
    return {"der_difference_percent": percent(rate), "low": percent(low), "high": percent(high)}


def speed(args: Args, label: str, half: str, recordings: list[Recording], seconds: dict[str, float]) -> Row:
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


@dataclass
class Tally:
    """Sums over recordings."""

    errors: list[Any] = field(default_factory=list)
    counted_right: int = 0
    cpu_s: float = 0.0
    audio_s: float = 0.0


def live_options(parser: argparse.ArgumentParser) -> None:
    folder_options(parser)
    add(parser, "--delay", (2.0, 5.0, 10.0), "delays")


def live(args: Args) -> Iterator[Row]:
    """Yield a row for each kind and delay, the first without one, and for all kinds together."""
    import harken
    from harken.audio import load_audio
    from harken.evaluation.speaker_errors import count_diarization_errors
    from harken.formats.rttm import read_rttm

    diarizer = harken.load_diarizer(args.speaker_model, threads=args.threads)
    tallies: dict[tuple[str, float | None], Tally] = {}
    for one in find_recordings(args):
        note(one.path.stem)
        samples, reference = load_audio(one.path), read_rttm(one.path.with_suffix(".rttm"))
        for delay_s in (None, *args.delay):
            began_s = process_time()
            whole = delay_s is None
            turns = diarizer.diarize(samples).turns if whole else live_turns(diarizer, samples, delay_s)
            taken_s = process_time() - began_s
            for kind in (one.kind, "all"):
                tally = tallies.setdefault((kind, delay_s), Tally())
                tally.errors.append(count_diarization_errors(reference, turns))
                tally.counted_right += len({t.speaker for t in turns}) == len({t.speaker for t in reference})
                tally.cpu_s += taken_s
                tally.audio_s += len(samples) / SAMPLE_RATE
    for (kind, delay_s), tally in sorted(tallies.items(), key=lambda item: item[0][0] == "all"):
        speech_s = sum(errors.speech_s for errors in tally.errors)
        yield {
            "kind": kind,
            "delay_s": delay_s,
            "recordings": len(tally.errors),
            "der_percent": percent(sum(errors.errors for errors in tally.errors) / speech_s),
            "confused_percent": percent(sum(errors.confused_s for errors in tally.errors) / speech_s),
            "counted_right": tally.counted_right,
            "cpu_factor": round(tally.cpu_s / tally.audio_s, 4),
        }


def live_turns(diarizer: Any, samples: Floats, delay_s: float) -> list[Any]:
    """Return the turns of a stream, each stretch as it was when the delay had passed."""
    diarization = diarizer.begin_live(delay_s)
    turns: list[Any] = []
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


def hours_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, metavar="FOLDER", help="recordings, repeated")
    parser.add_argument("--speaker-model", metavar="DIR", help="folder with the models of harken")
    add(parser, "--hours", 3, "length of the recording")


def many_hours(args: Args) -> Iterator[Row]:
    """Yield a row for each hour of a recording; clustering is that of all so far."""
    import harken
    from harken.audio import load_audio

    diarization = harken.load_diarizer(args.speaker_model, threads=args.threads).begin()

    def blocks() -> Iterator[tuple[float, Callable[[], None]]]:
        for path in cycle(sorted(args.folder.glob("*.wav"))):
            samples = load_audio(path)
            yield len(samples) / SAMPLE_RATE, partial(diarization.feed, samples)

    def clustering() -> Row:
        before_s = process_time()
        speakers = len(diarization.speakers)
        return {"clustering_s": round(process_time() - before_s, 2), "speakers": speakers}

    yield from hours(blocks(), args.hours, clustering)


if __name__ == "__main__":
    common: dict[str, Any] = {
        "doc": __doc__,
        "needs": ("harken", "scipy"),
        "packages": ("scipy", "onnxruntime"),
    }
    main(
        Program(name="speakers-peers", rows=peers, options=peers_options, **common),
        Program(name="speakers-live", rows=live, options=live_options, **common),
        Program(name="speakers-hours", rows=many_hours, options=hours_options, **common),
    )

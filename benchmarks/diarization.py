"""Diarization of the conversations that `conversations` wrote, by harken and its peers.

Each engine runs in a process of its own, in turn over all recordings. Differences are harken minus the other, of the
same recordings, with 95 % intervals from resampled recordings.

    python benchmarks/diarization.py --folder FOLDER --python senko=/path/to/python --save speakers-peers
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines import DIARIZERS, Engine, Reply, Worker
from program import Args, Parser, Row, add, main, note, percent
from recordings import difference

if TYPE_CHECKING:
    from harken.evaluation.speakers import SpeakerScore
    from harken.manifests import Entry


@dataclass(frozen=True, slots=True)
class Diarized:
    """A recording of a kind, its score, and the reply of the engine."""

    kind: str
    entry: Entry
    score: SpeakerScore
    reply: Reply


def options(parser: Parser) -> None:
    parser.add_argument("--folder", type=Path, required=True, metavar="FOLDER", help="conversations")
    add(parser, "--speaker-model", None, "folder with the models of harken")
    add(parser, "--half", "report", "of the conversations", choices=("tune", "report"))
    add(parser, "--kind", (), "kinds (all)")
    add(parser, "--engine", tuple(DIARIZERS), "engines", choices=DIARIZERS)
    add(parser, "--python", (), "ENGINE=PATH of interpreters with other engines")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each kind and result of an engine, and for all kinds together."""
    from harken.evaluation.speakers import summarise_speakers
    from harken.manifests import read_manifests

    kinds = args.kind or sorted(path.name for path in (args.folder / args.half).iterdir() if path.is_dir())
    entries = [
        (kind, entry)
        for kind in kinds
        for entry in read_manifests([args.folder / args.half / kind], needs_text=False)
    ]
    results: dict[str, list[Diarized]] = {}
    for engine in args.engine:
        for label, diarized in diarize(engine, entries, args):
            results.setdefault(label, []).append(diarized)
    first_label, *_ = results
    for kind in [*kinds, "all"]:
        chosen = {label: [one for one in own if kind in (one.kind, "all")] for label, own in results.items()}
        first = summarise_speakers(one.score for one in chosen[first_label])
        for label, own in chosen.items():
            evaluation = summarise_speakers(one.score for one in own)
            compared = None if label == first_label else evaluation.der
            found, audio_s = evaluation.errors, sum(one.entry.seconds or 0.0 for one in own)
            yield {
                "half": args.half,
                "kind": kind,
                "engine": label,
                "recordings": len(own),
                "der_percent": percent(found.rate),
                "missed_percent": percent(found.missed_s / found.speech_s),
                "false_alarm_percent": percent(found.false_alarm_s / found.speech_s),
                "confused_percent": percent(found.confused_s / found.speech_s),
                "collar_der_percent": percent(evaluation.collar_errors.rate),
                "jer_percent": percent(evaluation.jer and evaluation.jer.rate),
                "counted_right": evaluation.counted_right,
                **difference("der_difference_percent", first.der, compared),
                "real_time_factor": round(sum(one.reply.seconds for one in own) / audio_s, 4),
                "cpu_factor": round(sum(one.reply.cpu_s for one in own) / audio_s, 4),
                "peak_mb": round(max(one.reply.peak_mb for one in own)),
            }


def diarize(engine: str, entries: Sequence[tuple[str, Entry]], args: Args) -> Iterator[tuple[str, Diarized]]:
    """Yield the results of an engine for each recording, each with its label."""
    from harken.evaluation.speakers import SpeakerHypothesis, reference_path, score_speakers
    from harken.formats.table_format import read_rttm
    from harken.results import SpeakerTurn

    python = dict(pair.split("=", 1) for pair in args.python).get(engine, sys.executable)
    what = Engine(label=DIARIZERS[engine], model=args.speaker_model, precision="", threads=args.threads)
    with Worker(what, python) as worker:
        for kind, entry in entries:
            reply = worker.work(entry.path)
            note(f"{engine}: {entry.name} in {reply.seconds:.1f} s")
            reference = read_rttm(reference_path(entry))
            for label, turns in reply.turns.items():
                found = [SpeakerTurn(start_s=start, end_s=end, speaker=name) for start, end, name in turns]
                score = score_speakers(entry, reference, SpeakerHypothesis(turns=found))
                yield label, Diarized(kind, entry, score, reply)


if __name__ == "__main__":
    main(rows, options, needs=("harken", "scipy"), packages=("scipy", "onnxruntime"))

"""Errors and speed of harken beside faster-whisper's, on every set of recordings, model by model.

Both engines get the same weights, the precision of one class, the language that the manifest tells, and a beam of the
same width; all else is at their defaults. Each lives in a process of its own and loads a model once; they take turns,
ten recordings each. After every set what was heard is appended to a file, so that the same command goes on where
it was interrupted, and only prints the tables if all has been done.

    python benchmarks/quality.py --model base small --peer-model base-ct2 small-ct2 --precision int8 fp32 --beam 1 5
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import limit_threads, machine, note, parser, positive, require, run, stop, table
from engines import Engine, Worker
from speed import SETTLE_S

if TYPE_CHECKING:
    from harken.evaluation import Entry, ErrorRate, Evaluation

PEER = "faster-whisper"
PRECISIONS = {"int8": "int8", "fp32": "float32"}
"""Those of harken, and what the peer calls them."""
PIPELINES = {"sequential": "", "batched": " batched"}
"""What each adds to the kind of an engine."""
TURN = 10
"""Recordings that an engine transcribes before it is the other's turn."""
COLUMNS = (
    "set", "files", "minutes", "errors %", "of peer", "difference", "95 % interval", "CER %", "of peer",
    "times real time", "of peer", "times faster",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is compared: one table."""

    model: str
    peer_model: str
    precision: str
    pipeline: str
    beam: int
    threads: int
    limit: int | None

    @property
    def title(self) -> str:
        beam = "greedy" if self.beam == 1 else f"beam {self.beam}"
        some = f", at most {self.limit} recordings of a set" if self.limit else ""
        return (
            f"{Path(self.model).name}, {self.precision}, {beam}, {self.pipeline}, {self.threads} threads{some}"
        )

    def engines(self) -> tuple[Engine, Engine]:
        """harken and its peer."""
        ours = (f"harken{PIPELINES[self.pipeline]}", self.model, self.precision)
        theirs = (f"{PEER}{PIPELINES[self.pipeline]}", self.peer_model, PRECISIONS[self.precision])
        first, second = (
            Engine(
                label=f"{kind} {precision}", kind=kind, model=model, precision=precision, threads=self.threads
            )
            for kind, model, precision in (ours, theirs)
        )
        return first, second


def main() -> None:
    args = arguments()
    require("harken", "faster_whisper", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    setups, results = choose(args), Results(args.results)
    sets = read_sets(args)
    entries = {model: suitable(sets, model, args.limit) for model in args.model}
    for _, group in by_workers(setups):
        measure(group, entries[group[0].model], results)
    print("\n\n".join(dict.fromkeys(results.machines(setups))))
    for setup in setups:
        print(
            f"\n### {setup.title}\n\n{table(COLUMNS, rows(setup, entries[setup.model], results))}", flush=True
        )


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument(
        "--model", nargs="+", default=["tiny.en"], metavar="M", help="names or paths, for harken (tiny.en)"
    )
    its.add_argument(
        "--peer-model", nargs="+", metavar="DIR",
        help="the same models as CTranslate2 directories, in the same order; by default harken's",
    )  # fmt: skip
    its.add_argument("--precision", nargs="+", default=["int8"], choices=PRECISIONS, help="of both (int8)")
    its.add_argument(
        "--beam", type=positive, nargs="+", default=[1], metavar="N", help="widths; 1 is greedy (1)"
    )
    its.add_argument(
        "--pipeline", nargs="+", default=["sequential"], choices=PIPELINES, help="of both (sequential)"
    )
    its.add_argument("--set", nargs="+", metavar="NAME", help="sets; by default every folder with a manifest")
    its.add_argument(
        "--limit", type=positive, metavar="N", help="only N recordings of a set, spread evenly over it"
    )
    its.add_argument(
        "--results", type=Path, default=Path("quality.jsonl"), metavar="FILE",
        help="what has been heard, a set a line; what is in it is not run again (quality.jsonl)",
    )  # fmt: skip
    return its.parse_args()


def choose(args: argparse.Namespace) -> list[Setup]:
    """Everything to compare, in the order in which models stay loaded."""
    peers = args.peer_model or args.model
    if len(peers) != len(args.model):
        stop(f"--peer-model names {len(peers)} models; allowed are as many as --model, {len(args.model)}")
    models = [(model, peer_directory(peer)) for model, peer in zip(args.model, peers, strict=True)]
    return [
        Setup(
            model=model,
            peer_model=peer,
            precision=precision,
            pipeline=pipeline,
            beam=beam,
            threads=args.threads,
            limit=args.limit,
        )
        for (model, peer), precision, pipeline, beam in product(
            models, args.precision, args.pipeline, args.beam
        )
    ]


def peer_directory(model: str) -> str:
    """Directory of a model that the peer can read."""
    from harken.checkpoints import resolve_model

    directory = resolve_model(model)
    if not (directory / "model.bin").is_file():
        stop(
            f"{directory} is no CTranslate2 directory; --peer-model names one, such as "
            "ct2-transformers-converter --model DIR --output_dir CT2 --copy_files tokenizer.json makes"
        )
    return str(directory)


def read_sets(args: argparse.Namespace) -> dict[str, Sequence[Entry]]:
    """Recordings of each set."""
    from harken.evaluation import read_manifests

    names = args.set or sorted(manifest.parent.name for manifest in args.audio.glob("*/manifest.jsonl"))
    if not names:
        stop(f"{args.audio}: has no folders with a manifest.jsonl; --audio names a folder that does")
    return {name: read_manifests([args.audio / name], note=note) for name in names}


def suitable(sets: dict[str, Sequence[Entry]], model: str, limit: int | None) -> dict[str, Sequence[Entry]]:
    """What a model can be given: one that knows English only gets nothing else."""
    from harken.checkpoints import open_checkpoint, resolve_model
    from harken.evaluation import subsample_evenly

    multilingual = open_checkpoint(resolve_model(model)).dims.multilingual
    chosen = {
        name: subsample_evenly([its for its in entries if multilingual or its.language in ("en", None)], limit)
        for name, entries in sets.items()
    }
    return {name: entries for name, entries in chosen.items() if entries}


class Results:
    """What has been heard in each set with each setup, and the file that keeps it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = [json.loads(line) for line in lines if line.endswith("}")]  # or it was cut short
        self._machine = machine()

    def machines(self, setups: Iterable[Setup]) -> list[str]:
        """Where some setups were measured, when, and with what."""
        wanted = [asdict(setup) for setup in setups]
        return [its["machine"] for its in self._known if its["setup"] in wanted]

    def find(self, setup: Setup, name: str, entries: Sequence[Entry]) -> list[dict[str, Any]] | None:
        """What was heard in a set, recording by recording, if it was."""
        names = [entry.name for entry in entries]
        for its in self._known:
            if (its["setup"], its["set"]) == (asdict(setup), name) and names == [
                heard["audio"] for heard in its["heard"]
            ]:
                heard: list[dict[str, Any]] = its["heard"]
                return heard
        return None

    def add(self, setup: Setup, name: str, heard: Sequence[dict[str, Any]]) -> None:
        """Keep what was heard in a set."""
        its = {"setup": asdict(setup), "set": name, "machine": self._machine, "heard": heard}
        self._known.append(its)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(its, ensure_ascii=False) + "\n")


def by_workers(setups: Iterable[Setup]) -> Iterable[tuple[tuple[Engine, Engine], list[Setup]]]:
    """Setups that the same two processes can do."""
    groups: dict[tuple[Engine, Engine], list[Setup]] = {}
    for setup in setups:
        groups.setdefault(setup.engines(), []).append(setup)
    return groups.items()


def measure(setups: Sequence[Setup], sets: dict[str, Sequence[Entry]], results: Results) -> None:
    """Have both engines transcribe what is not known yet."""
    todo = [
        (name, entries, setup)
        for name, entries in sets.items()
        for setup in setups
        if results.find(setup, name, entries) is None
    ]
    if not todo:
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(engine)) for engine in setups[0].engines()]
        for worker in workers:
            worker.transcribe(todo[0][1][0].path)
        for name, entries, setup in todo:
            began_s = time.perf_counter()
            results.add(setup, name, take_turns(workers, entries, setup.beam))
            note(f"{setup.title}: {name}, {len(entries)} files in {time.perf_counter() - began_s:.0f} s")


def take_turns(workers: Sequence[Worker], entries: Sequence[Entry], beam: int) -> list[dict[str, Any]]:
    """What each engine hears in some recordings, and how long it takes."""
    heard: list[dict[str, Any]] = [{"audio": entry.name} for entry in entries]
    for start in range(0, len(entries), TURN):
        for worker, who in zip(workers, ("harken", "peer"), strict=True):
            time.sleep(SETTLE_S)
            for entry, its in zip(entries[start : start + TURN], heard[start : start + TURN], strict=True):
                reply = worker.transcribe(entry.path, entry.language, beam)
                its[who] = {"text": reply.text, "wall_s": round(reply.seconds, 4)}
    return heard


def rows(setup: Setup, sets: dict[str, Sequence[Entry]], results: Results) -> Iterator[list[str]]:
    """A line for each set, and one for all of them in which something is said."""
    every: list[tuple[Entry, dict[str, Any]]] = []
    for name, entries in sets.items():
        if heard := results.find(setup, name, entries):
            pairs = [*zip(entries, heard, strict=True)]
            every += [pair for pair in pairs if pair[0].text]
            yield row(name, *(evaluation(pairs, who) for who in ("harken", "peer")))
    if len(sets) > 1:
        yield row("all speech", *(evaluation(every, who) for who in ("harken", "peer")))


def evaluation(pairs: Iterable[tuple[Entry, dict[str, Any]]], who: str) -> Evaluation:
    """Score what one engine heard."""
    from harken.evaluation import EvalHypothesis, score, summarise

    return summarise(score(entry, EvalHypothesis(**heard[who]), entry.language) for entry, heard in pairs)


def row(name: str, ours: Evaluation, theirs: Evaluation) -> list[str]:
    """One line of a table; where nothing is said, the words that were heard stand for errors."""
    from harken.evaluation import compare_evaluations

    both = (ours, theirs)
    apart = compare_evaluations(ours, theirs)
    span = apart and apart.confidence_interval
    errors = [percent(its.overall) if apart else f"{its.hallucinations.words} words" for its in both]
    pace = [its.times_real_time or 0.0 for its in both]
    return [
        name,
        f"{len(ours.scores)}",
        f"{ours.audio_s / 60:.1f}",
        *errors,
        f"{100 * apart.rate:+.2f}" if apart else "-",
        f"{100 * span[0]:+.2f} to {100 * span[1]:+.2f}" if span else "-",
        *(percent(its.cer) for its in both),
        *(f"{its:.1f}" for its in pace),
        f"{pace[0] / pace[1]:.2f}",
    ]


def percent(rate: ErrorRate | None) -> str:
    return f"{100 * rate.rate:.2f}" if rate else "-"


if __name__ == "__main__":
    run(main)

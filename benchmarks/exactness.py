"""Whether drafts change a token: all speech there is, decoded plainly and with drafts at every step.

Drafting is forced, whether it pays or not, so times say nothing. A recording in which a token differs is named, with
the place; near ties are tokens chosen by less than the margin that rounding may turn round.

    python benchmarks/exactness.py --pair base tiny --precision int8
    python benchmarks/exactness.py --pair tiny.en ngram --pair base.en tiny.en --precision fp32 --set ljspeech
"""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from common import limit_threads, machine, note, parser, positive, require, run, table
from quality import read_sets, suitable
from speculative import DRAFTED, PLAIN, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harken import Recognizer
    from harken.evaluation import Entry

SETS = (
    *(
        "librispeech-test-other",
        "librispeech-train-clean",
        "ljspeech",
        "arctic",
        "long-form",
        "german",
        "dutch",
    ),
    *("french", "chinese", "many-languages", "noisy", "telephone"),
)
COLUMNS = (
    *(
        "set",
        "recordings",
        "tokens",
        "passes",
        "with drafts",
        "drafted",
        "accepted, %",
        "recordings that differ",
    ),
    *("near ties", "smallest margin"),
)
WORTH = 0.05
"""Drafts go on until their tokens are less likely than this to be accepted: longer than pays."""


def main() -> None:
    its = parser(__doc__)
    its.add_argument(
        "--pair", nargs=2, action="append", metavar=("MODEL", "ASSISTANT"), help="may be repeated (base tiny)"
    )
    its.add_argument("--precision", nargs="+", default=["int8"], metavar="P", help="of the model (int8)")
    its.add_argument("--batch", type=positive, nargs="+", default=[1], metavar="N", help="windows together (1)")
    its.add_argument("--set", nargs="+", default=[*SETS], metavar="NAME", help="sets (all with speech)")
    its.add_argument("--limit", type=positive, default=1000, metavar="N", help="recordings of a set (all)")
    args = its.parse_args()
    require("harken")
    limit_threads(args.threads)
    print(machine())
    sets = read_sets(args)
    for (model, assistant), precision in product(args.pair or [("base", "tiny")], args.precision):
        engines = load(model, assistant, precision, args.threads)
        title = f"{Path(model).name} with {Path(assistant).name}, {precision}"
        print(f"\n### {title}\n\n{table(COLUMNS, [])}", flush=True)
        for (name, entries), batch in product(suitable(sets, model, args.limit).items(), args.batch):
            began_s = time.perf_counter()
            print(line(compare(engines, name, entries, batch)), flush=True)
            note(f"{title}: {name}, batch {batch}, in {time.perf_counter() - began_s:.0f} s")


def load(model: str, assistant: str, precision: str, threads: int) -> dict[str, Recognizer]:
    """One model without its assistant, and with it at every step."""
    import harken
    from harken.decoding.draft_controller import DraftController

    class Eager(DraftController):
        def may_draft(self, *, set_up: bool) -> bool:
            return self.plain_cost.measurements > 0

        def floor(self, rows: int) -> float:
            return WORTH

    drafted = harken.load(model, assistant=assistant, precision=precision, threads=threads)
    assert drafted.speculator, "there is an assistant"
    for experience in (drafted.speculator.greedy, drafted.speculator.sampling):
        experience.controller = Eager(time.perf_counter)
    plain = harken.Recognizer(drafted.backend, drafted.tokenizer, drafted.model)
    return {PLAIN: plain, DRAFTED: drafted}


def compare(engines: dict[str, Recognizer], name: str, entries: Sequence[Entry], batch: int) -> list[str]:
    """One line of a table; recordings that differ are named on standard error."""
    from harken import TranscribeOptions
    from harken.evaluation import EvalRecording, divergences, run_rounds, summarise_speed

    options = TranscribeOptions(batch_size=batch)
    sounds = [EvalRecording(entry=entry, has_reference=False) for entry in entries]
    turns = [*run_rounds(engines, sounds, options, 1)]
    plain, drafted = (summarise_speed(turns, engine, options, scored=False) for engine in engines)
    apart, stats = divergences(turns, *engines), drafted.stats
    for its in apart:
        note(f"{its.entry.name}: {its.start_s:.2f} s, token {its.index}: {its.tokens}")
    return [
        name,
        f"{len(plain.results)}",
        f"{plain.stats.sampled_tokens}",
        f"{plain.stats.forwards}",
        f"{stats.forwards}",
        f"{stats.drafted}",
        f"{100 * (stats.acceptance_rate or 0):.1f}",
        f"{len(apart)}",
        f"{len(stats.near_ties)}",
        f"{min(stats.near_ties):.1e}" if stats.near_ties else "",
    ]


if __name__ == "__main__":
    run(main)

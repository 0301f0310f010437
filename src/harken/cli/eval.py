"""``harken eval``: error rates of recordings whose words are known."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from harken.api import Recognizer
from harken.atomic import open_atomic
from harken.cli.exits import EPILOGUE, SOME_FAILED, Stop
from harken.cli.options import (
    Command,
    Option,
    chosen_options,
    decoding_options,
    flag,
    load_model,
    model_options,
)
from harken.cli.scores import failed, line, total, worst
from harken.cli.screen import Screen
from harken.evaluation import (
    Entry,
    Evaluation,
    Failure,
    Hypotheses,
    Score,
    listen,
    open_hypotheses,
    provenance,
    read_manifests,
    report,
    summarise,
)
from harken.transcribe import TranscribeOptions

evaluation = partial(flag, section="Evaluation")

# Options of the model on which the text does not depend.
_INDIFFERENT = ("threads", "download")


@click.command("eval", cls=Command, epilog=EPILOGUE)
@click.argument("manifests", metavar="MANIFEST...", nargs=-1, required=True)
@evaluation(
    "--detect/--language-from-manifest",
    default=False,
    help="Detect the language, or take it from the manifest where it is known there.",
)
@evaluation(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Only N recordings of each manifest, spread evenly over it.",
)
@evaluation(
    "--worst",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    help="Show the differences in the N recordings with the most errors.",
)
@evaluation("--json", "json_file", metavar="FILE", help="Write everything to a file as one JSON object.")
@evaluation(
    "--hypotheses",
    metavar="FILE",
    help="Keep what was heard in a file of JSON lines; what it holds is not transcribed again.",
)
@evaluation("-q", "--quiet", is_flag=True, help="Only the totals and the worst, no line for each recording.")
@evaluation("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar.")
@model_options
@decoding_options
def command(manifests: Sequence[str], json_file: str | None, hypotheses: str | None, **given: Any) -> int:
    """Measure how many words are heard rightly.

    MANIFEST is a file of JSON lines, each with the path of a recording (audio, from the manifest), what is said in it
    (text), and where known language, seconds and speaker; or a folder that holds such a manifest.jsonl.

    Both texts are made comparable with the normalizers of openai-whisper; in languages that have no spaces between
    words, characters count. A recording that fails is reported and the others are done. Ctrl-C sums up what has been
    done; with --hypotheses the same command goes on from there.
    """
    options = chosen_options(given)
    if given["detect"] and options.language:
        raise click.UsageError("--detect and --language exclude each other")
    entries = read_manifests(manifests, given["limit"], note=partial(click.echo, err=True))
    by = provenance(options, detect=given["detect"], **_engine(given))
    with ExitStack() as stack:
        # Opened first: what cannot be written shows before the work, not after it.
        write = stack.enter_context(open_atomic(Path(json_file))) if json_file else None
        kept = stack.enter_context(open_hypotheses(hypotheses, by))
        screen = stack.enter_context(Screen(given["progress"]))
        done, stop = _listen(screen, entries, kept, options, given)
        if write:
            write(json.dumps(report(done, by, complete=stop is None), ensure_ascii=False, indent=1) + "\n")
        if done.scores:
            screen.say(total(done) + "".join(map(worst, done.worst(given["worst"]))))
    if stop:
        kept_in = f"; what was heard is in {hypotheses}" if hypotheses else ""
        raise Stop(stop.code, f"{stop} after {len(done.scores)} of {len(entries)} recordings{kept_in}")
    return SOME_FAILED if done.failures else 0


def _engine(given: dict[str, Any]) -> dict[str, Any]:
    """What was chosen to compute with, as far as the text depends on it."""
    return {
        option.name: given[option.name]
        for option in command.params
        if isinstance(option, Option) and option.section == "Model" and option.name not in _INDIFFERENT
    }


def _listen(
    screen: Screen,
    entries: Sequence[Entry],
    kept: Hypotheses,
    options: TranscribeOptions,
    given: dict[str, Any],
) -> tuple[Evaluation, Stop | None]:
    """Do one recording after another and show each; what was done, and what ended it early."""
    scores: list[Score] = []
    failures: list[Failure] = []
    lengths = [entry.seconds for entry in entries]
    total_s = None if None in lengths else sum(filter(None, lengths))
    progress = screen.track(f"{len(entries)} recordings", total_s)
    try:
        for outcome in listen(
            entries, partial(_load, screen, given), options, detect=given["detect"], hypotheses=kept
        ):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                screen.note(failed(outcome))
            else:
                scores.append(outcome)
                if not given["quiet"]:
                    screen.say(line(outcome))
            progress(sum(its.seconds or 0.0 for its in scores), False)
    except Stop as stop:
        return summarise(scores, failures), stop
    return summarise(scores, failures), None


def _load(screen: Screen, given: dict[str, Any]) -> Recognizer:
    if not given["progress"]:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    screen.waiting("loading the model ...")
    try:
        return load_model(given)
    finally:
        screen.waiting("")

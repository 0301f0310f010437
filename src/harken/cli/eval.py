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
    decoding_options,
    load_model,
    model_options,
    single_option,
    transcribe_options_from,
)
from harken.cli.scores import format_differences, format_failure, format_score, format_totals
from harken.cli.screen import Screen
from harken.evaluation import (
    Entry,
    Evaluation,
    Failure,
    HypothesisStore,
    Score,
    evaluate_entries,
    open_hypotheses,
    provenance,
    read_manifests,
    report,
    summarise,
)
from harken.transcribe import TranscribeOptions

evaluation_option = partial(single_option, section="Evaluation")

# Options of the model on which the text does not depend.
_TEXT_NEUTRAL_OPTIONS = ("threads", "download")


@click.command("eval", cls=Command, epilog=EPILOGUE)
@click.argument("manifests", metavar="MANIFEST...", nargs=-1, required=True)
@evaluation_option(
    "--detect/--language-from-manifest",
    default=False,
    help="Detect the language, or take it from the manifest where it is known there.",
)
@evaluation_option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Only N recordings of each manifest, spread evenly over it.",
)
@evaluation_option(
    "--worst",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    help="Show the differences in the N recordings with the most errors.",
)
@evaluation_option("--json", "json_file", metavar="FILE", help="Write everything to a file as one JSON object.")
@evaluation_option(
    "--hypotheses",
    metavar="FILE",
    help="Keep what was heard in a file of JSON lines; what it holds is not transcribed again.",
)
@evaluation_option(
    "-q", "--quiet", is_flag=True, help="Only the totals and the worst, no line for each recording."
)
@evaluation_option("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar.")
@model_options
@decoding_options
def command(manifests: Sequence[str], json_file: str | None, hypotheses: str | None, **params: Any) -> int:
    """Measure how many words are heard rightly.

    MANIFEST is a file of JSON lines, each with the path of a recording (audio, from the manifest), what is said in it
    (text), and where known language, seconds and speaker; or a folder that holds such a manifest.jsonl.

    Both texts are made comparable with the normalizers of openai-whisper; in languages that have no spaces between
    words, characters count. A recording that fails is reported and the others are done. Ctrl-C sums up what has been
    done; with --hypotheses the same command goes on from there.
    """
    options = transcribe_options_from(params)
    if params["detect"] and options.language:
        raise click.UsageError("--detect and --language exclude each other")
    entries = read_manifests(manifests, params["limit"], note=partial(click.echo, err=True))
    made_by = provenance(options, detect=params["detect"], **_model_params(params))
    with ExitStack() as stack:
        # Opened first: what cannot be written shows before the work, not after it.
        write = stack.enter_context(open_atomic(Path(json_file))) if json_file else None
        stored_hypotheses = stack.enter_context(open_hypotheses(hypotheses, made_by))
        screen = stack.enter_context(Screen(params["progress"]))
        evaluation, stop = _evaluate_all(screen, entries, stored_hypotheses, options, params)
        if write:
            write(
                json.dumps(report(evaluation, made_by, complete=stop is None), ensure_ascii=False, indent=1)
                + "\n"
            )
        if evaluation.scores:
            screen.write_stdout(
                format_totals(evaluation) + "".join(map(format_differences, evaluation.worst(params["worst"])))
            )
    if stop:
        saved = f"; what was heard is in {hypotheses}" if hypotheses else ""
        raise Stop(stop.code, f"{stop} after {len(evaluation.scores)} of {len(entries)} recordings{saved}")
    return SOME_FAILED if evaluation.failures else 0


def _model_params(params: dict[str, Any]) -> dict[str, Any]:
    """What was chosen to compute with, as far as the text depends on it."""
    return {
        option.name: params[option.name]
        for option in command.params
        if isinstance(option, Option) and option.section == "Model" and option.name not in _TEXT_NEUTRAL_OPTIONS
    }


def _evaluate_all(
    screen: Screen,
    entries: Sequence[Entry],
    stored_hypotheses: HypothesisStore,
    options: TranscribeOptions,
    params: dict[str, Any],
) -> tuple[Evaluation, Stop | None]:
    """Do one recording after another and show each; what was done, and what ended it early."""
    scores: list[Score] = []
    failures: list[Failure] = []
    durations_s = [entry.seconds for entry in entries]
    total_s = None if None in durations_s else sum(filter(None, durations_s))
    progress = screen.track(f"{len(entries)} recordings", total_s)
    try:
        for outcome in evaluate_entries(
            entries,
            partial(_load_with_status, screen, params),
            options,
            detect_language=params["detect"],
            hypotheses=stored_hypotheses,
        ):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                screen.write_stderr(format_failure(outcome))
            else:
                scores.append(outcome)
                if not params["quiet"]:
                    screen.write_stdout(format_score(outcome))
            progress(sum(score.seconds or 0.0 for score in scores), False)
    except Stop as stop:
        return summarise(scores, failures), stop
    return summarise(scores, failures), None


def _load_with_status(screen: Screen, params: dict[str, Any]) -> Recognizer:
    if not params["progress"]:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    screen.show_status("loading the model ...")
    try:
        return load_model(params)
    finally:
        screen.show_status("")

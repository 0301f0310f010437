"""``harken eval``: measures the error rates on recordings with known text, and with ``--speakers`` who speaks when."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import click

from harken.api import load_diarizer
from harken.cli.eval_report import (
    SPEAKER_COLUMNS,
    format_differences,
    format_scores,
    format_speaker_score,
    format_speaker_totals,
    format_totals,
    render_page,
)
from harken.cli.inputs import refuse_overwriting
from harken.cli.measuring import Measurement, Report, json_option, limit_option, measure
from harken.cli.model_options import chosen_files, load_model_with_status, model_options, model_params
from harken.cli.options import (
    Command,
    FilePath,
    ResultPath,
    abridged,
    decoding_options,
    is_given,
    progress_option,
    refuse_options_in_vain,
    single_option,
    with_option,
    without_flag,
)
from harken.cli.terminal import Screen, write_stderr
from harken.evaluation.evaluate import Engine, evaluate_entries, open_hypotheses, provenance, read_hypotheses
from harken.evaluation.scoring import Failure, Score, report, report_differences, summarise, worst
from harken.evaluation.speakers import (
    SpeakerScore,
    evaluate_speakers,
    reference_path,
    report_speakers,
    summarise_speakers,
)
from harken.manifests import Entry, named_files, read_manifests
from harken.option_types import options_from
from harken.transcribe import TranscribeOptions

evaluation_option = partial(single_option, section="Evaluation")
text_option = partial(evaluation_option, no_effect=with_option("speakers"))
speakers_option = partial(evaluation_option, no_effect=without_flag("speakers"))

# Options of the model that do not change the text.
_TEXT_NEUTRAL_OPTIONS = ("threads", "download")
_ANY_MANIFEST = "."
_ALLOWED_CHANGES = "allowed are options of the model and of decoding, --detect and --hypotheses"


@click.command("eval", cls=Command)
@click.argument("manifests", metavar="MANIFEST...", nargs=-1, required=True, type=FilePath())
@text_option(
    "--detect/--language-from-manifest",
    default=False,
    help="Detect the language, or take it from the manifest if it is given there.",
)
@limit_option(section="Evaluation")
@text_option(
    "--worst",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    help="Show the differences in the N recordings with the most errors.",
)
@text_option(
    "--compare",
    metavar="OPTIONS|FILE",
    type=FilePath(),
    multiple=True,
    help="Compare with other options, such as '--beam-size 5', or a file of hypotheses; may be given repeatedly.",
)
@text_option(
    *("--html", "page_file"),
    metavar="FILE",
    type=ResultPath(),
    help="Write a page with the recordings with errors, to listen to, and their differences, the worst first.",
)
@json_option(section="Evaluation")
@text_option(
    "--hypotheses",
    metavar="FILE",
    type=ResultPath(),
    help="Save hypotheses in a file of JSON lines; recordings in it are not transcribed again.",
)
@evaluation_option(
    "-q", "--quiet", is_flag=True, help="Print only the totals and the worst, no line for each recording."
)
@progress_option(section="Evaluation")
@evaluation_option(
    "--speakers",
    is_flag=True,
    help="Measure who speaks when, against turns in RTTM, and who said which words.",
)
@speakers_option(
    "--turns",
    metavar="FOLDER",
    type=FilePath(),
    help="With --speakers: score the NAME.json or NAME.rttm in a folder; nothing is computed.",
)
@speakers_option(
    "--words/--no-words",
    default=True,
    help="With --speakers: transcribe recordings whose manifest has the words of each speaker.",
)
@model_options
@decoding_options
def command(**params: Any) -> int:
    """Measure error rates.

    MANIFEST is a file of JSON lines, each with the path of a recording (audio, relative to the manifest), its text
    (text), and if known language, seconds and speaker; or a folder that holds such a manifest.jsonl.

    Both texts are normalized as by openai-whisper; in languages without spaces between words, characters are counted.
    A recording that fails is reported, and the others are transcribed. Ctrl-C reports the totals so far; with
    --hypotheses the same command continues from there.

    With --compare every recording is transcribed with both settings, and the differences of their error rates have
    intervals of their own. Options hold on top of those of the command; --hypotheses among them names a file for these.

    With --speakers a line of the manifest has the turns of the recording (rttm, a path; or there is a file with the
    name of the recording that ends in .rttm) and, if known, its words (said, a list of turns with speaker and text).
    """
    settings = {"": params} | {
        text: _changed(click.get_current_context(), text) for text in params["compare"] if _are_options(text)
    }
    options = {name: _transcribe_options(own) for name, own in settings.items()}
    files = [text for text in params["compare"] if not _are_options(text)]
    entries = read_manifests(
        params["manifests"], params["limit"], note=write_stderr, needs_text=not params["speakers"]
    )
    written = [params["json_file"], params["page_file"], *(own["hypotheses"] for own in settings.values())]
    refuse_overwriting(
        filter(None, written),
        [
            *named_files(params["manifests"], needs_text=not params["speakers"]),
            *(reference_path(entry) for entry in entries if params["speakers"]),
            *(file for own in settings.values() for file in chosen_files(own)),
            *files,
        ],
    )
    with ExitStack() as stores, Screen(params["progress"]) as screen:
        load = cache(lambda model: load_model_with_status(screen, dict(model)))
        engines = {
            name: Engine(
                partial(load, tuple(model_params(own).items())),
                options[name],
                stores.enter_context(open_hypotheses(own["hypotheses"], _provenance(own, options[name]))),
                detect_language=own["detect"],
            )
            for name, own in settings.items()
        }
        for name, own in settings.items():
            known = engines[name].hypotheses
            if known.by_name and (lacking := known.describe_lacking(entries)):
                screen.write_stderr(f"harken: {own['hypotheses']}: {lacking}; what it lacks is transcribed")
        engines |= {file: replace(engines[""], hypotheses=read_hypotheses(file, entries)) for file in files}

        def start() -> Measurement[Any]:
            if params["speakers"]:
                return _speakers_measurement(screen, entries, options[""], params)
            return _measurement(entries, engines, params)

        return measure(screen, start, params["json_file"], params["page_file"])


def _are_options(text: str) -> bool:
    """Return whether what is compared with are options, and no file."""
    return text.startswith("-")


def _changed(context: click.Context, text: str) -> dict[str, Any]:
    """Return the parameters of the command, changed by some options for an engine to compare with."""
    command, where = context.command, f"--compare {abridged(text)}"
    # On Windows a backslash separates folders, and escapes nothing.
    typed = text.replace("\\", "\\\\") if os.name == "nt" else text
    try:
        # Manifests before the options: behind them, the last option would take what follows for its value.
        changes = command.make_context(
            context.info_name, [_ANY_MANIFEST, *shlex.split(typed)], parent=context.parent
        )
    except ValueError as error:
        raise click.UsageError(f"{where}: {error}") from error
    except click.UsageError as error:
        raise click.UsageError(f"{where}: {error.format_message()}") from error
    given = {name: value for name, value in changes.params.items() if is_given(name, changes)}
    settings = {
        "detect",
        "hypotheses",
        *model_params(given),
        *(field.name for field in fields(TranscribeOptions)),
    }
    if given.pop("manifests") != (_ANY_MANIFEST,) or not given.keys() <= settings:
        raise click.UsageError(f"{where}: {_ALLOWED_CHANGES}")
    changes.params = context.params | {"hypotheses": None} | given
    refuse_options_in_vain(command, changes)
    return changes.params


def _transcribe_options(params: Mapping[str, Any]) -> TranscribeOptions:
    options = options_from(TranscribeOptions, params)
    if params["detect"] and options.language:
        raise click.UsageError("--detect and --language exclude each other")
    return options


def _provenance(params: Mapping[str, Any], options: TranscribeOptions) -> dict[str, Any]:
    engine = model_params(params, exclude=_TEXT_NEUTRAL_OPTIONS)
    return provenance(options, detect=params["detect"], **engine)


def _measurement(
    entries: Sequence[Entry], engines: Mapping[str, Engine], params: Mapping[str, Any]
) -> Measurement[tuple[Score, ...]]:
    """Return the measurement of error rates; the first engine, which the others are compared with, has no name."""
    hypotheses, page_file = params["hypotheses"], params["page_file"]
    detected = any(engine.detect_language for engine in engines.values())

    def make_report(scores: Sequence[tuple[Score, ...]], failures: Sequence[Failure], complete: bool) -> Report:
        evaluations = {
            name: summarise([own[index] for own in scores], failures) for index, name in enumerate(engines)
        }
        totals = format_totals(evaluations, detected=detected)
        named = [dict(zip(engines, own, strict=True)) for own in worst(scores)]
        differences = (
            format_differences(score, name) for own in named[: params["worst"]] for name, score in own.items()
        )
        reports = {
            name: report(evaluation, engines[name].hypotheses.provenance, complete=complete)
            for name, evaluation in evaluations.items()
        }
        first = reports.pop("")
        compared = {
            name: {"differences": report_differences(evaluations[name], evaluations[""])} | own
            for name, own in reports.items()
        }
        return Report(
            recordings=len(scores),
            text=totals + "".join(differences),
            as_json=first | ({"compared": compared} if compared else {}),
            page=render_page(totals, named, Path(page_file).parent) if page_file else "",
        )

    return Measurement(
        outcomes=evaluate_entries(entries, [*engines.values()]),
        report=make_report,
        recordings=len(entries),
        durations_s=[entry.seconds for entry in entries],
        measured_s=lambda scores: scores[0].seconds or 0.0,
        shown=lambda scores: "" if params["quiet"] else format_scores(scores),
        saved=f"; what was done is in {hypotheses}" if hypotheses else "",
    )


def _speakers_measurement(
    screen: Screen, entries: Sequence[Entry], options: TranscribeOptions, params: dict[str, Any]
) -> Measurement[SpeakerScore]:
    """Return the measurement of who speaks when; its table begins at once."""
    quiet = params["quiet"]

    def make_report(scores: Sequence[SpeakerScore], failures: Sequence[Failure], complete: bool) -> Report:
        evaluation = summarise_speakers(scores, failures)
        return Report(
            recordings=len(scores),
            text=format_speaker_totals(evaluation),
            as_json=report_speakers(evaluation, complete=complete),
        )

    if not quiet:
        screen.write_stdout("".join(f"{name:>{width}}" for name, width in SPEAKER_COLUMNS) + "\n")
    return Measurement(
        outcomes=evaluate_speakers(
            entries,
            partial(load_diarizer, threads=params["threads"], download=params["download"]),
            partial(load_model_with_status, screen, params) if params["words"] else None,
            options,
            turns=params["turns"],
        ),
        report=make_report,
        recordings=len(entries),
        durations_s=[entry.seconds for entry in entries],
        measured_s=lambda score: score.entry.seconds or 0.0,
        shown=lambda score: "" if quiet else format_speaker_score(score),
    )

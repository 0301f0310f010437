"""``harken eval``: measures the error rates on recordings with known text, and with ``--speakers`` who speaks when."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from harken.api import load_diarizer
from harken.cli.exits import EPILOGUE
from harken.cli.inputs import refuse_overwriting
from harken.cli.measuring import Measurement, Report, format_percent, format_rate, format_speed, measure
from harken.cli.model_options import (
    chosen_loader,
    load_model_with_status,
    model_files,
    model_options,
    model_params,
)
from harken.cli.options import Command, FilePath, decoding_options, single_option
from harken.cli.terminal import Screen, format_table, pluralize, write_stderr
from harken.evaluation.error_rate import AlignmentChunk, ErrorCounts, ErrorRate, align_words
from harken.evaluation.evaluate import HypothesisStore, evaluate_entries, open_hypotheses, provenance
from harken.evaluation.scoring import Evaluation, Failure, Score, report, summarise
from harken.evaluation.speakers import (
    SpeakerEvaluation,
    SpeakerScore,
    evaluate_speakers,
    reference_path,
    report_speakers,
    summarise_speakers,
)
from harken.manifests import Entry, manifest_path, read_manifests
from harken.option_types import options_from
from harken.transcribe import TranscribeOptions

CONTEXT_WORDS = 4
"""Number of correct words shown on either side of a difference."""
TABLE_HEADER = ("", "error %", "95 % interval", "substituted", "deleted", "inserted", "of")
SPEAKER_COLUMNS = (("DER", 7), ("0.25 s", 7), ("JER", 7), ("speakers", 10), ("cpWER", 7))


def format_score(score: Score) -> str:
    """Format the error rate, the errors, the length and the name of a recording."""
    counts = score.error_counts
    error_rate = f"{format_percent(counts.rate):>6} %" if score.normalized_reference else " silent "
    return (
        f"{error_rate}  {counts.errors:>3} of {counts.reference_length:>4} {_unit(score)}  {score.entry.name}\n"
    )


def format_totals(evaluation: Evaluation) -> str:
    """Format the totals over all recordings."""
    speed = format_speed(evaluation.audio_s, evaluation.wall_s)
    audio_s = sum(score.seconds or 0.0 for score in evaluation.scores)
    lines = [f"\n{pluralize(len(evaluation.scores), 'recording')}: {audio_s:.1f} s of audio{speed}\n"]
    if rows := [*_rate_rows(evaluation)]:
        lines.append(format_table([TABLE_HEADER, *rows]))
    if evaluation.overall and evaluation.overall.confidence_interval:
        lines.append(f"The intervals resample {evaluation.resampling_unit}.\n")
    if (no_speech := evaluation.hallucinations).recordings:
        hallucinated = f"{pluralize(no_speech.words, 'word')} transcribed in {no_speech.affected} of them"
        lines.append(f"No speech in {pluralize(no_speech.recordings, 'recording')}: {hallucinated}.\n")
    if detected := _language_errors(evaluation):
        lines.append(detected)
    return "".join(lines)


def format_differences(score: Score) -> str:
    """Format the differences in a recording: words left out as [-this-], words added as {+this+}."""
    counts, separator = score.error_counts, " " if score.word_errors else ""
    spans = align_words(score.normalized_reference, score.normalized_hypothesis)
    marked_text = separator.join(
        _format_span(span, index, len(spans), separator) for index, span in enumerate(spans)
    )
    error_rate = f", {format_percent(counts.rate)} %" if score.normalized_reference else ""
    return f"\n{score.entry.name}: {pluralize(counts.errors, 'error')}{error_rate}\n  {marked_text}\n"


def _rate_rows(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    if evaluation.wer:
        yield _rate_row("WER", evaluation.wer, "words")
    if evaluation.cer:
        yield _rate_row("CER", evaluation.cer, "characters")
    if len(evaluation.languages) > 1:
        word_languages = {score.language or "unknown" for score in evaluation.scores if score.word_errors}
        for code, rate in evaluation.languages.items():
            kind, units = ("WER", "words") if code in word_languages else ("CER", "characters")
            yield _rate_row(f"{kind} {code}", rate, units)


def _rate_row(label: str, rate: ErrorRate, units: str) -> tuple[str, ...]:
    counted: ErrorCounts = rate.error_counts
    counts = map(str, (counted.substitutions, counted.deletions, counted.insertions))
    return (label, *format_rate(rate), *counts, f"{counted.reference_length} {units}")


def _language_errors(evaluation: Evaluation) -> str:
    """Return a line about recordings whose language was detected wrongly; empty if there are none."""
    known = [score for score in evaluation.scores if score.entry.language and score.hypothesis.language]
    wrong = [score for score in known if score.entry.language != score.hypothesis.language]
    if not wrong:
        return ""
    return f"Taken for another language: {len(wrong)} of {pluralize(len(known), 'recording')}.\n"


def _format_span(span: AlignmentChunk, index: int, span_count: int, separator: str) -> str:
    if span.equal:
        return separator.join(_abridge(span.reference, first=index == 0, last=index == span_count - 1))
    reference = _colour(f"[-{separator.join(span.reference)}-]", "red") if span.reference else ""
    hypothesis = _colour(f"{{+{separator.join(span.hypothesis)}+}}", "green") if span.hypothesis else ""
    return reference + hypothesis


def _abridge(words: tuple[str, ...], *, first: bool, last: bool) -> list[str]:
    """Return only the words next to a difference."""
    before, after = [] if last else [*words[-CONTEXT_WORDS:]], [] if first else [*words[:CONTEXT_WORDS]]
    if len(words) <= len(before) + len(after) + 1:
        return [*words]
    return [*after, "...", *before]


def _colour(text: str, colour: str) -> str:
    """Colour a text, unless NO_COLOR is set; writing to a file or a pipe removes the colours."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def _unit(score: Score) -> str:
    return "words" if score.word_errors else "characters"


evaluation_option = partial(single_option, section="Evaluation")

# Options of the model that do not change the text.
_TEXT_NEUTRAL_OPTIONS = ("threads", "download")


@click.command("eval", cls=Command, epilog=EPILOGUE)
@click.argument("manifests", metavar="MANIFEST...", nargs=-1, required=True, type=FilePath())
@evaluation_option(
    "--detect/--language-from-manifest",
    default=False,
    help="Detect the language, or take it from the manifest if it is given there.",
)
@evaluation_option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Use only N recordings of each manifest, spread evenly over it.",
)
@evaluation_option(
    "--worst",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    help="Show the differences in the N recordings with the most errors.",
)
@evaluation_option(
    *("--json", "json_file"),
    metavar="FILE",
    type=FilePath(),
    help="Write all results to a file as one JSON object.",
)
@evaluation_option(
    "--hypotheses",
    metavar="FILE",
    type=FilePath(),
    help="Save hypotheses in a file of JSON lines; recordings in it are not transcribed again.",
)
@evaluation_option(
    "-q", "--quiet", is_flag=True, help="Print only the totals and the worst, no line for each recording."
)
@evaluation_option("--progress/--no-progress", default=True, help="Show a progress bar on a terminal.")
@evaluation_option(
    "--speakers",
    is_flag=True,
    help="Measure who speaks when, against turns in RTTM, and who said which words.",
)
@evaluation_option(
    "--turns",
    metavar="FOLDER",
    type=FilePath(),
    help="With --speakers: score the NAME.json or NAME.rttm in a folder; nothing is computed.",
)
@evaluation_option(
    "--words/--no-words",
    default=True,
    help="With --speakers: transcribe recordings whose manifest has the words of each speaker.",
)
@model_options
@decoding_options
def command(manifests: Sequence[str], json_file: str | None, hypotheses: str | None, **params: Any) -> int:
    """Measure error rates.

    MANIFEST is a file of JSON lines, each with the path of a recording (audio, relative to the manifest), its text
    (text), and if known language, seconds and speaker; or a folder that holds such a manifest.jsonl.

    Both texts are normalized as by openai-whisper; in languages without spaces between words, characters are counted.
    A recording that fails is reported, and the others are transcribed. Ctrl-C reports the totals so far; with
    --hypotheses the same command continues from there.

    With --speakers a line of the manifest has the turns of the recording (rttm, a path; or there is a file with the
    name of the recording that ends in .rttm) and, if known, its words (said, a list of turns with speaker and text).
    """
    options = options_from(TranscribeOptions, params)
    if params["detect"] and options.language:
        raise click.UsageError("--detect and --language exclude each other")
    _check_speaker_options(params, hypotheses)
    entries = read_manifests(manifests, params["limit"], note=write_stderr, needs_text=not params["speakers"])
    refuse_overwriting(
        [file for file in (json_file, hypotheses) if file],
        [
            *map(manifest_path, manifests),
            *(entry.path for entry in entries),
            *(reference_path(entry) for entry in entries if params["speakers"]),
            *model_files(params["model"], params["assistant"], params["adapter"]),
        ],
    )
    made_by = provenance(
        options, detect=params["detect"], **model_params(params, exclude=_TEXT_NEUTRAL_OPTIONS)
    )
    with open_hypotheses(hypotheses, made_by) as store, Screen(params["progress"]) as screen:

        def start() -> Measurement[Any]:
            if params["speakers"]:
                return _speakers_measurement(screen, entries, options, params)
            saved = f"; what was done is in {hypotheses}" if hypotheses else ""
            return _measurement(screen, entries, store, options, params, made_by, saved)

        return measure(screen, start, json_file)


def _check_speaker_options(params: Mapping[str, Any], hypotheses: str | None) -> None:
    """Refuse options that mean nothing with or without --speakers."""
    if params["speakers"] and hypotheses:
        raise click.UsageError("--speakers and --hypotheses exclude each other; --turns scores what is there")
    if not params["speakers"] and (params["turns"] or not params["words"]):
        raise click.UsageError("--turns and --no-words need --speakers")


def _measurement(
    screen: Screen,
    entries: Sequence[Entry],
    store: HypothesisStore,
    options: TranscribeOptions,
    params: dict[str, Any],
    made_by: Mapping[str, Any],
    saved: str,
) -> Measurement[Score]:
    """Return the measurement of error rates."""

    def make_report(scores: Sequence[Score], failures: Sequence[Failure], complete: bool) -> Report:
        evaluation = summarise(scores, failures)
        differences = map(format_differences, evaluation.worst(params["worst"]))
        return Report(
            recordings=len(scores),
            text=format_totals(evaluation) + "".join(differences),
            as_json=report(evaluation, made_by, complete=complete),
        )

    return Measurement(
        outcomes=evaluate_entries(
            entries,
            partial(load_model_with_status, screen, params),
            options,
            detect_language=params["detect"],
            hypotheses=store,
        ),
        report=make_report,
        recordings=len(entries),
        label=f"{len(entries)} recordings",
        durations_s=[entry.seconds for entry in entries],
        measured_s=lambda score: score.seconds or 0.0,
        shown=lambda score: "" if params["quiet"] else format_score(score),
        saved=saved,
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
            partial(chosen_loader("load_diarizer", load_diarizer), threads=params["threads"]),
            partial(load_model_with_status, screen, params) if params["words"] else None,
            options,
            turns=params["turns"],
        ),
        report=make_report,
        recordings=len(entries),
        label=f"{len(entries)} recordings",
        durations_s=[entry.seconds for entry in entries],
        measured_s=lambda score: score.entry.seconds or 0.0,
        shown=lambda score: "" if quiet else format_speaker_score(score),
    )


def format_speaker_score(score: SpeakerScore) -> str:
    """Format the error rates and the name of a recording, under `SPEAKER_COLUMNS`."""
    words = score.cp_word_errors
    cells = (
        format_percent(score.errors.rate),
        format_percent(score.collar_errors.rate),
        format_percent(score.jaccard.rate),
        f"{score.found_speakers} of {score.speakers}",
        format_percent(words.rate if words else None),
    )
    row = "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, SPEAKER_COLUMNS, strict=True))
    return f"{row}  {score.entry.name}\n"


def format_speaker_totals(evaluation: SpeakerEvaluation) -> str:
    """Format the rates over all recordings, each with its interval and what it is made of."""
    count = len(evaluation.scores)
    header = ("", "error %", "95 % interval", "missed", "false", "confused", "of")
    parts = [f"\n{pluralize(count, 'recording')}", _speaker_speed(evaluation), "\n"]
    parts.append(format_table([header, *_speaker_rows(evaluation)]))
    parts.append(
        f"Number of speakers right in {evaluation.counted_right} of {pluralize(count, 'recording')}.\n"
    )
    if count > 1:
        parts.append("The intervals resample recordings.\n")
    return "".join(parts)


def _speaker_rows(evaluation: SpeakerEvaluation) -> Iterator[tuple[str, ...]]:
    for label, rate, errors in (
        ("DER", evaluation.der, evaluation.errors),
        ("DER, collar 0.25 s", evaluation.collar_der, evaluation.collar_errors),
    ):
        if rate:
            shares = (errors.missed_s, errors.false_alarm_s, errors.confused_s)
            cells = (format_percent(seconds / errors.speech_s) for seconds in shares)
            yield (label, *format_rate(rate), *cells, f"{errors.speech_s:.0f} s of speech")
    speakers = sum(score.speakers for score in evaluation.scores)
    words = sum(score.cp_word_errors.reference_length for score in evaluation.scores if score.cp_word_errors)
    compared = sum(score.speaker_errors.reference_length for score in evaluation.scores if score.speaker_errors)
    for label, rate, unit in (
        ("JER", evaluation.jer, f"{speakers} speakers"),
        ("cpWER", evaluation.cp_wer, f"{words} words"),
        ("words of others", evaluation.wder, f"{compared} words"),
    ):
        if rate:
            yield (label, *format_rate(rate), "", "", "", unit)


def _speaker_speed(evaluation: SpeakerEvaluation) -> str:
    timed = [score for score in evaluation.scores if score.wall_s and score.entry.seconds]
    wall_s = sum(score.wall_s or 0.0 for score in timed)
    audio_s = sum(score.entry.seconds or 0.0 for score in timed)
    return f": {audio_s:.1f} s of audio{format_speed(audio_s, wall_s)}" if wall_s else ""

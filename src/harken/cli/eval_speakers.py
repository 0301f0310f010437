"""``harken eval --speakers``: measures who speaks when, and who said which words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from harken.api import load_diarizer
from harken.cli.measuring import Measurement, Report, format_percent, format_rate, format_speed
from harken.cli.options import chosen_loader, load_model_with_status
from harken.cli.screen import Screen, format_table, pluralize
from harken.evaluation.scoring import Failure
from harken.evaluation.speakers import (
    SpeakerEvaluation,
    SpeakerScore,
    evaluate_speakers,
    report_speakers,
    summarise_speakers,
)
from harken.manifests import Entry
from harken.transcribe import TranscribeOptions

COLUMNS = (("DER", 7), ("0.25 s", 7), ("JER", 7), ("speakers", 10), ("cpWER", 7))


def speakers_measurement(
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
        screen.write_stdout("".join(f"{name:>{width}}" for name, width in COLUMNS) + "\n")
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
    """Format the error rates and the name of a recording, under `COLUMNS`."""
    words = score.cp_word_errors
    cells = (
        format_percent(score.errors.rate),
        format_percent(score.collar_errors.rate),
        format_percent(score.jaccard.rate),
        f"{score.found_speakers} of {score.speakers}",
        format_percent(words.rate if words else None),
    )
    row = "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    return f"{row}  {score.entry.name}\n"


def format_speaker_totals(evaluation: SpeakerEvaluation) -> str:
    """Format the rates over all recordings, each with its interval and what it is made of."""
    count = len(evaluation.scores)
    header = ("", "error %", "95 % interval", "missed", "false", "confused", "of")
    parts = [f"\n{pluralize(count, 'recording')}", _speed(evaluation), "\n"]
    parts.append(format_table([header, *_rows(evaluation)]))
    parts.append(
        f"Number of speakers right in {evaluation.counted_right} of {pluralize(count, 'recording')}.\n"
    )
    if count > 1:
        parts.append("The intervals resample recordings.\n")
    return "".join(parts)


def _rows(evaluation: SpeakerEvaluation) -> Iterator[tuple[str, ...]]:
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


def _speed(evaluation: SpeakerEvaluation) -> str:
    timed = [score for score in evaluation.scores if score.wall_s and score.entry.seconds]
    wall_s = sum(score.wall_s or 0.0 for score in timed)
    audio_s = sum(score.entry.seconds or 0.0 for score in timed)
    return f": {audio_s:.1f} s of audio{format_speed(audio_s, wall_s)}" if wall_s else ""

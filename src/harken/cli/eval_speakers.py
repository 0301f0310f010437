"""``harken eval --speakers``: measures who speaks when, and who said which words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from harken.cli.exits import Stop
from harken.cli.options import load_model_with_status
from harken.cli.screen import Screen, format_table, pluralize
from harken.cli.signals import finishing_calls
from harken.evaluation import Entry, Failure
from harken.evaluation.speakers import (
    DiarizerProtocol,
    Rate,
    SpeakerEvaluation,
    SpeakerScore,
    evaluate_speakers,
    summarise_speakers,
)
from harken.transcribe import TranscribeOptions

COLUMNS = (("DER", 7), ("0.25 s", 7), ("JER", 7), ("speakers", 10), ("cpWER", 7))


def load_diarizer(params: dict[str, Any]) -> DiarizerProtocol:
    """Load the models that tell speakers apart."""
    import harken

    diarizer: DiarizerProtocol = harken.load_diarizer(threads=params["threads"])
    return diarizer


def evaluate_all_speakers(
    screen: Screen, entries: Sequence[Entry], options: TranscribeOptions, params: dict[str, Any]
) -> tuple[SpeakerEvaluation, Stop | None]:
    """Evaluate the recordings and show each; return the result, and the stop that ended it early, if any."""
    scores: list[SpeakerScore] = []
    failures: list[Failure] = []
    progress = screen.track_all(f"{len(entries)} recordings", (entry.seconds for entry in entries))
    load_recognizer: Callable[[], Any] = partial(load_model_with_status, screen, params)
    if not params["quiet"]:
        screen.write_stdout("".join(f"{name:>{width}}" for name, width in COLUMNS) + "\n")
    try:
        with finishing_calls():
            for outcome in evaluate_speakers(
                entries,
                partial(load_diarizer, params),
                load_recognizer if params["words"] else None,
                options,
                turns=params["turns"],
            ):
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                    screen.write_stderr(f"harken: {outcome.reason}")
                else:
                    scores.append(outcome)
                    if not params["quiet"]:
                        screen.write_stdout(format_speaker_score(outcome))
                progress(sum(score.entry.seconds or 0.0 for score in scores), False)
    except Stop as stop:
        return summarise_speakers(scores, failures), stop
    return summarise_speakers(scores, failures), None


def format_speaker_score(score: SpeakerScore) -> str:
    """Format the error rates and the name of a recording, under `COLUMNS`."""
    jaccard, words = score.jaccard, score.cp_word_errors
    cells = (
        _percent(score.errors.rate),
        _percent(score.collar_errors.rate),
        _percent(jaccard.errors / jaccard.reference_length if jaccard.reference_length else None),
        f"{score.found_speakers} of {score.speakers}",
        _percent(words.rate if words else None),
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
            cells = (_percent(seconds / errors.speech_s) for seconds in shares)
            yield (label, *_rate(rate), *cells, f"{errors.speech_s:.0f} s of speech")
    speakers = sum(score.speakers for score in evaluation.scores)
    words = sum(score.cp_word_errors.reference_length for score in evaluation.scores if score.cp_word_errors)
    compared = sum(score.speaker_errors.reference_length for score in evaluation.scores if score.speaker_errors)
    for label, rate, unit in (
        ("JER", evaluation.jer, f"{speakers} speakers"),
        ("cpWER", evaluation.cp_wer, f"{words} words"),
        ("words of others", evaluation.wder, f"{compared} words"),
    ):
        if rate:
            yield (label, *_rate(rate), "", "", "", unit)


def _rate(rate: Rate) -> tuple[str, str]:
    interval = rate.confidence_interval
    return _percent(rate.rate), " to ".join(map(_percent, interval)) if interval else "-"


def _speed(evaluation: SpeakerEvaluation) -> str:
    timed = [score for score in evaluation.scores if score.wall_s and score.entry.seconds]
    wall_s = sum(score.wall_s or 0.0 for score in timed)
    audio_s = sum(score.entry.seconds or 0.0 for score in timed)
    return (
        f": {audio_s:.1f} s of audio in {wall_s:.1f} s, {audio_s / wall_s:.1f} times real time"
        if wall_s
        else ""
    )


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.2f}"

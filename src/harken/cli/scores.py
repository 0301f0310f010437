"""How scores look: a line a recording, the totals, and the differences between two texts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from harken.cli.layout import format_table, pluralize
from harken.evaluation import AlignmentChunk, ErrorCounts, ErrorRate, Evaluation, Failure, Score, align_words

CONTEXT_WORDS = 4
"""Words that are shown of what was heard rightly, on either side of a difference."""
TABLE_HEADER = ("", "error %", "95 % interval", "substituted", "deleted", "inserted", "of")


def format_score(score: Score) -> str:
    """One recording: its error rate, errors and length, and its name."""
    tally = score.error_counts
    error_rate = f"{_percent(tally.rate):>6} %" if score.normalized_reference else " silent "
    return (
        f"{error_rate}  {tally.errors:>3} of {tally.reference_length:>4} {_unit(score)}  {score.entry.name}\n"
    )


def format_failure(failure: Failure) -> str:
    """One recording that could not be read."""
    return f"harken: {failure.reason}"


def format_totals(evaluation: Evaluation) -> str:
    """All recordings together."""
    speed = evaluation.times_real_time
    speed_text = f" in {evaluation.wall_s:.1f} s, {speed:.1f} times real time" if speed else ""
    audio_s = sum(score.seconds or 0.0 for score in evaluation.scores)
    lines = [f"\n{pluralize(len(evaluation.scores), 'recording')}: {audio_s:.1f} s of sound{speed_text}\n"]
    if rows := [*_rate_rows(evaluation)]:
        lines.append(format_table([TABLE_HEADER, *rows]))
    if evaluation.overall and evaluation.overall.confidence_interval:
        lines.append(f"The intervals draw {evaluation.resampling_unit} anew.\n")
    if (no_speech := evaluation.hallucinations).recordings:
        hallucinated = f"{pluralize(no_speech.words, 'word')} heard in {no_speech.affected} of them"
        lines.append(f"Nothing is said in {pluralize(no_speech.recordings, 'recording')}: {hallucinated}.\n")
    if detected := _language_errors(evaluation):
        lines.append(detected)
    return "".join(lines)


def format_differences(score: Score) -> str:
    """Where a recording differs: what was left out as [-this-], what was added as {+this+}."""
    tally, separator = score.error_counts, " " if score.word_errors else ""
    spans = align_words(score.normalized_reference, score.normalized_hypothesis)
    marked_text = separator.join(
        _format_span(span, index, len(spans), separator) for index, span in enumerate(spans)
    )
    error_rate = f", {_percent(tally.rate)} %" if score.normalized_reference else ""
    return f"\n{score.entry.name}: {pluralize(tally.errors, 'error')}{error_rate}\n  {marked_text}\n"


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
    interval = " to ".join(map(_percent, rate.confidence_interval)) if rate.confidence_interval else "-"
    counts = map(str, (counted.substitutions, counted.deletions, counted.insertions))
    return (label, _percent(rate.rate), interval, *counts, f"{counted.reference_length} {units}")


def _language_errors(evaluation: Evaluation) -> str:
    """How often the language that was heard is the one that is spoken, unless it always was."""
    known = [score for score in evaluation.scores if score.entry.language and score.hypothesis.language]
    wrong = [its for its in known if its.entry.language != its.hypothesis.language]
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
    """Only the words beside a difference."""
    before, after = [] if last else [*words[-CONTEXT_WORDS:]], [] if first else [*words[:CONTEXT_WORDS]]
    if len(words) <= len(before) + len(after) + 1:
        return [*words]
    return [*after, "...", *before]


def _colour(text: str, colour: str) -> str:
    """Text for a terminal; where there is none the colours are taken away when it is written."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def _unit(score: Score) -> str:
    return "words" if score.word_errors else "characters"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.2f}"

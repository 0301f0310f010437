"""How scores look: a line a recording, the totals, and the differences between two texts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from harken.cli.layout import aligned, counted
from harken.evaluation import ErrorRate, Evaluation, Failure, Piece, Score, Tally, differences

CONTEXT = 4
"""Words that are shown of what was heard rightly, on either side of a difference."""
HEAD = ("", "error %", "95 % interval", "substituted", "deleted", "inserted", "of")


def line(score: Score) -> str:
    """One recording: its error rate, errors and length, and its name."""
    tally = score.tally
    share = f"{_percent(tally.rate):>6} %" if score.said else " silent "
    return f"{share}  {tally.errors:>3} of {tally.reference:>4} {_unit(score)}  {score.entry.name}\n"


def failed(failure: Failure) -> str:
    """One recording that could not be read."""
    return f"harken: {failure.reason}"


def total(evaluation: Evaluation) -> str:
    """All recordings together."""
    speed = evaluation.times_real_time
    pace = f" in {evaluation.wall_s:.1f} s, {speed:.1f} times real time" if speed else ""
    sound_s = sum(its.seconds or 0.0 for its in evaluation.scores)
    lines = [f"\n{counted(len(evaluation.scores), 'recording')}: {sound_s:.1f} s of sound{pace}\n"]
    if rows := [*_rates(evaluation)]:
        lines.append(aligned([HEAD, *rows]))
    if evaluation.overall and evaluation.overall.interval:
        lines.append(f"The intervals draw {evaluation.drawn} anew.\n")
    if (silent := evaluation.invented).recordings:
        heard = f"{counted(silent.words, 'word')} heard in {silent.spoiled} of them"
        lines.append(f"Nothing is said in {counted(silent.recordings, 'recording')}: {heard}.\n")
    if detected := _detected(evaluation):
        lines.append(detected)
    return "".join(lines)


def worst(score: Score) -> str:
    """Where a recording differs: what was left out as [-this-], what was added as {+this+}."""
    tally, between = score.tally, " " if score.words else ""
    pieces = differences(score.said, score.understood)
    shown = between.join(_piece(piece, number, len(pieces), between) for number, piece in enumerate(pieces))
    share = f", {_percent(tally.rate)} %" if score.said else ""
    return f"\n{score.entry.name}: {counted(tally.errors, 'error')}{share}\n  {shown}\n"


def _rates(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    if evaluation.wer:
        yield _row("WER", evaluation.wer, "words")
    if evaluation.cer:
        yield _row("CER", evaluation.cer, "characters")
    if len(evaluation.languages) > 1:
        worded = {its.language or "unknown" for its in evaluation.scores if its.words}
        for code, rate in evaluation.languages.items():
            kind, units = ("WER", "words") if code in worded else ("CER", "characters")
            yield _row(f"{kind} {code}", rate, units)


def _row(label: str, rate: ErrorRate, units: str) -> tuple[str, ...]:
    its: Tally = rate.tally
    span = " to ".join(map(_percent, rate.interval)) if rate.interval else "-"
    counts = map(str, (its.substitutions, its.deletions, its.insertions))
    return (label, _percent(rate.rate), span, *counts, f"{its.reference} {units}")


def _detected(evaluation: Evaluation) -> str:
    """How often the language that was heard is the one that is spoken, unless it always was."""
    known = [its for its in evaluation.scores if its.entry.language and its.heard.language]
    wrong = [its for its in known if its.entry.language != its.heard.language]
    if not wrong:
        return ""
    return f"Taken for another language: {len(wrong)} of {counted(len(known), 'recording')}.\n"


def _piece(piece: Piece, number: int, pieces: int, between: str) -> str:
    if piece.equal:
        return between.join(_abridged(piece.said, first=number == 0, last=number == pieces - 1))
    said = _coloured(f"[-{between.join(piece.said)}-]", "red") if piece.said else ""
    heard = _coloured(f"{{+{between.join(piece.heard)}+}}", "green") if piece.heard else ""
    return said + heard


def _abridged(words: tuple[str, ...], *, first: bool, last: bool) -> list[str]:
    """Only the words beside a difference."""
    before, after = [] if last else [*words[-CONTEXT:]], [] if first else [*words[:CONTEXT]]
    if len(words) <= len(before) + len(after) + 1:
        return [*words]
    return [*after, "...", *before]


def _coloured(text: str, colour: str) -> str:
    """Text for a terminal; where there is none the colours are taken away when it is written."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def _unit(score: Score) -> str:
    return "words" if score.words else "characters"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.2f}"

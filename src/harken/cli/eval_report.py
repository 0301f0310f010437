"""The report of an evaluation: printed lines, a table of error rates, differences of texts, and a page to listen to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

import click

from harken.cli.measuring import NOTHING, format_percent, format_rate, format_speed
from harken.cli.terminal import format_table, pluralize
from harken.evaluation.error_rate import AlignmentChunk, ErrorRate, difference
from harken.evaluation.scoring import Evaluation, Score
from harken.evaluation.speakers import SpeakerEvaluation, SpeakerScore
from harken.formats import RecordingLink, printable, replace_controls
from harken.formats.html_format import csp_hash

CONTEXT_WORDS = 4
"""Number of correct words shown on either side of a difference."""
KINDS = {"words": "WER", "characters": "CER"}
"""Error rates by their units."""
CLASS_UNITS = {"names": "names", "numbers": "numbers", "language": "recordings"}
SPEAKER_COLUMNS = (("DER", 7), ("0.25 s", 7), ("JER", 7), ("speakers", 10), ("cpWER", 7))
Rates = dict[str, tuple[ErrorRate, str]]
"""Rows of the table by their labels: a rate, and the unit it counts."""


def format_scores(scores: Sequence[Score]) -> str:
    """Format the error rates and errors of a recording by each engine, its length and its name."""
    first = scores[0]
    rates = "".join(
        f"{format_percent(scored.error_counts.rate):>6} % " if scored.normalized_reference else " silent  "
        for scored in scores
    )
    errors = " ".join(f"{scored.error_counts.errors:>3}" for scored in scores)
    return f"{rates} {errors} of {first.error_counts.reference_length:>4} {first.unit}  {first.entry.name}\n"


def format_totals(evaluations: Mapping[str, Evaluation], *, detected: bool) -> str:
    """Format the totals over all recordings.

    Parameters
    ----------
    evaluations : dict of str to Evaluation
        Those of each engine by its name; the first, which the others are compared with, has an empty one.
    detected : bool
        Whether languages were detected.
    """
    base = next(iter(evaluations.values()))
    audio_s = sum(score.seconds or 0.0 for score in base.scores)
    speeds = {name: format_speed(each.audio_s, each.wall_s) for name, each in evaluations.items()}
    lines = [f"\n{pluralize(len(base.scores), 'recording')}: {audio_s:.1f} s of audio{speeds.pop('')}\n"]
    lines += [f"{name}:{speed.removeprefix(' in')}\n" for name, speed in speeds.items() if speed]
    if rows := [*_rows(evaluations, detected)]:
        paired = ("difference", "95 % interval") if len(evaluations) > 1 else ()
        kinds = ("substituted", "deleted", "inserted", "of")
        lines.append(format_table([("", "error %", "95 % interval", *paired, *kinds), *rows]))
    if base.overall and base.overall.confidence_interval:
        lines.append(f"The intervals resample {base.resampling_unit}.\n")
    for name, evaluation in evaluations.items():
        lines += [f"{name}: {remark}\n" if name else f"{remark}\n" for remark in _remarks(evaluation)]
    return "".join(lines)


def format_differences(score: Score, engine: str) -> str:
    """Format the differences in a recording: words left out as [-this-], words added as {+this+}."""
    counts, separator = score.error_counts, " " if score.word_errors else ""
    spans = score.alignment
    marked_text = separator.join(
        _format_span(span, index, len(spans), separator) for index, span in enumerate(spans)
    )
    error_rate = f", {format_percent(counts.rate)} %" if score.normalized_reference else ""
    name = f"{score.entry.name}, {engine}" if engine else score.entry.name
    return f"\n{name}: {pluralize(counts.errors, 'error')}{error_rate}\n  {marked_text}\n"


def _rows(evaluations: Mapping[str, Evaluation], detected: bool) -> Iterator[tuple[str, ...]]:
    """Yield the rows of each rate: that of the first engine, and below it those of the others."""
    rates = {name: _rates(evaluation) for name, evaluation in evaluations.items()}
    for label, (base, unit) in rates[""].items():
        found = {name: own[label][0] for name, own in rates.items() if label in own}
        is_class = label.replace(" ", "_") in evaluations[""].classes
        wrong = any(rate.error_counts.errors for rate in found.values())
        if is_class and not wrong and not (label == "language" and detected):
            continue
        for name, rate in found.items():
            counts = rate.error_counts
            paired = _difference(rate, base if name else None) if len(rates) > 1 else ()
            kinds = map(str, (counts.substitutions, counts.deletions, counts.insertions))
            length = "" if name else f"{counts.reference_length} {unit}"
            yield (f"  {name}" if name else label, *format_rate(rate), *paired, *kinds, length)


def _difference(rate: ErrorRate, base: ErrorRate | None) -> tuple[str, str]:
    found = difference(rate, base)
    if not found:
        return "", ""
    interval = " to ".join(f"{100 * end:+.2f}" for end in found.confidence_interval or ())
    return f"{100 * found.rate:+.2f}", interval or NOTHING


def _rates(evaluation: Evaluation) -> Rates:
    with_speech = [scored for scored in evaluation.scores if scored.normalized_reference]
    if not with_speech:
        return {}

    def rows(
        groups: Mapping[str, ErrorRate], key: Callable[[Score], str]
    ) -> Iterator[tuple[str, tuple[ErrorRate, str]]]:
        for name, rate in groups.items() if len(groups) > 1 else ():
            label, unit = _kind(scored for scored in with_speech if key(scored) == name)
            yield f"{label} {name}", (rate, unit)

    label, unit = _kind(with_speech)
    totals = {
        "WER": (evaluation.wer, "words"),
        "CER": (evaluation.cer, "characters"),
        label: (evaluation.overall, unit),
    }
    return {
        **{label: (rate, unit) for label, (rate, unit) in totals.items() if rate},
        **dict(rows(evaluation.sets, lambda scored: scored.entry.set)),
        **dict(rows(evaluation.languages, lambda scored: scored.language or "unknown")),
        **{
            name.replace("_", " "): (rate, CLASS_UNITS.get(name, unit))
            for name, rate in evaluation.classes.items()
        },
    }


def _kind(scores: Iterable[Score]) -> tuple[str, str]:
    """Return the error rate and the unit of recordings."""
    counted = {scored.unit for scored in scores}
    units = [unit for unit in KINDS if unit in counted]
    return " or ".join(KINDS[unit] for unit in units), " or ".join(units)


def _remarks(evaluation: Evaluation) -> Iterator[str]:
    """Yield lines about recordings without speech, and about speech without text."""
    if (no_speech := evaluation.hallucinations).recordings:
        hallucinated = f"{pluralize(no_speech.words, 'word')} transcribed in {no_speech.affected} of them"
        yield f"No speech in {pluralize(no_speech.recordings, 'recording')}: {hallucinated}."
    if (lost := evaluation.lost).recordings:
        yield f"No text of {pluralize(lost.recordings, 'recording')} with speech."
    if lost.dropped_s or lost.unwritten_s:
        yield (
            f"Detected speech without text: {lost.dropped_s:.1f} s dropped as hallucinations, "
            f"{lost.unwritten_s:.1f} s unwritten."
        )


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
    recordings = pluralize(count, "recording")
    parts = (
        f"\n{recordings}{_speaker_speed(evaluation)}\n",
        format_table([header, *_speaker_rows(evaluation)]),
        f"Number of speakers right in {evaluation.counted_right} of {recordings}.\n",
        "The intervals resample recordings.\n" if count > 1 else "",
    )
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


_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 56rem; margin: 1rem auto; padding: 0 1rem; font: 1rem/1.6 system-ui, sans-serif; }
pre { overflow-x: auto; line-height: 1.4; }
article { border-top: 1px solid #8886; padding: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: .25rem 0; }
small, summary { color: GrayText; font-weight: normal; font-size: .875rem; }
p { margin: .4rem 0; }
audio { width: 100%; height: 2.5rem; }
del { background: #e2582240; }
ins { background: #2a9d3a40; text-decoration: none; border-bottom: 2px solid #2a9d3a; }
"""


def render_page(summary: str, recordings: Iterable[Mapping[str, Score]], folder: Path) -> str:
    """Return the page as html, without a script; it needs neither server nor network.

    Parameters
    ----------
    summary : str
        The totals, as lines of text.
    recordings : iterable of dict of str to Score
        Those to show, in this order, each with the score of every engine by its name; that of one may be empty.
    folder : Path
        Folder of the page; it links to the recordings from there.
    """
    articles = "".join(_article(scores, folder) for scores in recordings)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; media-src * file:; style-src '{csp_hash(_STYLE)}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evaluation</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Evaluation</h1>
<pre>{_text(summary.strip())}</pre>
<p><del>only in the reference</del> <ins>only in the transcript</ins></p>
{articles}</body>
</html>
"""


def _article(scores: Mapping[str, Score], folder: Path) -> str:
    first = next(iter(scores.values()))
    url = RecordingLink(path=first.entry.path, transcript_folder=folder).url
    bodies = "".join(_body(name, scored) for name, scored in scores.items())
    return f"""<article>
<h2>{escape(printable(first.entry.name))}</h2>
<audio controls preload="none" src="{escape(url)}"></audio>
{bodies}<details><summary>Reference</summary>
{_paragraph(_text(first.entry.text), first)}</details>
</article>
"""


def _body(name: str, scored: Score) -> str:
    """Return the differences of one engine, and its text."""
    counts, separator = scored.error_counts, " " if scored.word_errors else ""
    marked = separator.join(_chunk(chunk, separator) for chunk in scored.alignment)
    engine = f"{escape(printable(name))}: " if name else ""
    return f"""<p><small>{engine}{counts.errors} errors, of {counts.reference_length} {scored.unit}</small></p>
{_paragraph(marked, scored)}<details><summary>Transcript</summary>
{_paragraph(_text(scored.hypothesis.text), scored)}</details>
"""


def _paragraph(html: str, scored: Score) -> str:
    language = f' lang="{escape(scored.language)}"' if scored.language else ""
    return f'<p dir="auto"{language}>{html}</p>\n'


def _chunk(chunk: AlignmentChunk, separator: str) -> str:
    reference, hypothesis = (_text(separator.join(words)) for words in (chunk.reference, chunk.hypothesis))
    if chunk.equal:
        return reference
    return " ".join(f"<{tag}>{text}</{tag}>" for tag, text in (("del", reference), ("ins", hypothesis)) if text)


def _text(text: str) -> str:
    return escape(replace_controls(text))

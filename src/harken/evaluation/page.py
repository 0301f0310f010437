"""The page of an evaluation: its totals, and the recordings with the most errors, to listen to.

It has no script, and needs neither server nor network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from harken.evaluation.error_rate import AlignmentChunk
from harken.evaluation.scoring import Score
from harken.formats import RecordingLink, printable, replace_controls
from harken.formats.html_format import csp_hash

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
    """Return the page as html.

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

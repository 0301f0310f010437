"""Output formats of a transcript: subtitles, tables, json, and an html page that plays the recording.

A writer returns text incrementally, so that segments can be written as they arrive, to a file, a screen or a socket::

    writer = make_writer("srt", Layout(subtitle_style="plain"))
    out(writer.header())
    for segment in segments:
        out(writer.segment(segment))
    out(writer.footer(transcript))

After an early stop, write the footer with the transcript so far: the output is then complete. A segment without text
writes nothing, except in json and html; rttm has the turns of speakers alone, and writes them at the end. Control
characters in the text become U+FFFD, except in json and html, which escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from harken.errors import OptionError
from harken.formats import subtitles
from harken.formats.base import (
    RULES,
    STYLES,
    Layout,
    TranscriptFormat,
    escape_controls,
    format_timestamp,
    main_speaker,
    printable,
    replace_controls,
)
from harken.formats.html_format import HtmlFormat, RecordingLink
from harken.formats.json_format import JsonFormat, as_json, dump_json, from_json, segment_from_json
from harken.formats.subtitles import SubtitleFormat
from harken.formats.table_format import RttmFormat, TableFormat, TextFormat, segment_rows, word_rows
from harken.results import Transcript

__all__ = [
    "FORMATS",
    "RULES",
    "STYLES",
    "WORD_FORMATS",
    "Layout",
    "RecordingLink",
    "TranscriptFormat",
    "as_json",
    "dump_json",
    "escape_controls",
    "format_timestamp",
    "from_json",
    "main_speaker",
    "make_writer",
    "printable",
    "render",
    "replace_controls",
    "segment_from_json",
]

#: Every format by name, which is also the suffix of its files.
FORMATS: dict[str, Callable[[Layout, RecordingLink | None], TranscriptFormat]] = {
    "txt": lambda layout, recording: TextFormat(),
    "srt": lambda layout, recording: SubtitleFormat(subtitles.SRT, layout),
    "vtt": lambda layout, recording: SubtitleFormat(subtitles.VTT, layout),
    "ass": lambda layout, recording: SubtitleFormat(subtitles.ASS, layout),
    "lrc": lambda layout, recording: SubtitleFormat(subtitles.LRC, layout),
    "tsv": lambda layout, recording: TableFormat(("start", "end", "text"), segment_rows, layout),
    "words.tsv": lambda layout, recording: TableFormat(
        ("start", "end", "probability", "word"), word_rows, layout
    ),
    "json": lambda layout, recording: JsonFormat(),
    "html": HtmlFormat,
    "rttm": lambda layout, recording: RttmFormat(recording),
}
WORD_FORMATS = {"words.tsv", "html"}
"""Formats that show words, so that word timestamps need not be asked for."""


def make_writer(
    name: str, layout: Layout | None = None, recording: RecordingLink | None = None
) -> TranscriptFormat:
    """Return the writer of one transcript in one format.

    Parameters
    ----------
    name : str
        A key of `FORMATS`.
    layout : Layout, optional
    recording : RecordingLink, optional
        The recording that the html page plays, and that rttm names.

    Raises
    ------
    OptionError
        If there is no such format.
    """
    if name not in FORMATS:
        raise OptionError("format", name, ", ".join(FORMATS))
    return FORMATS[name](layout or Layout(), recording)


def render(
    transcript: Transcript, name: str, layout: Layout | None = None, recording: RecordingLink | None = None
) -> Iterator[str]:
    """Yield the text of a finished transcript in one format.

    Parameters
    ----------
    transcript : Transcript
    name : str
        A key of `FORMATS`.
    layout : Layout, optional
        Its `speakers` is on for a transcript that has them.
    recording : RecordingLink, optional
        The recording that the html page plays, and that rttm names.

    Raises
    ------
    OptionError
        If there is no such format, or the transcript is a transcription in progress.
    AudioError
        If the recording is to be embedded in the page, and cannot be read or changes meanwhile.
    """
    if not isinstance(transcript, Transcript):
        raise OptionError("transcript", transcript, "a Transcript, as result() of a transcription returns")
    layout = layout or Layout()
    if transcript.speakers is not None:
        layout = replace(layout, speakers=True)
    writer = make_writer(name, layout, recording)
    yield from writer.header_chunks()
    yield from map(writer.segment, transcript.segments)
    yield writer.footer(transcript)

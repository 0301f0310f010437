"""The forms made of cues: srt, vtt, ass and lrc. Each is a `Grammar`: data, and a few functions of a cue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from harken.formats.base import format_timestamp, to_centiseconds, to_milliseconds, without_blank_lines
from harken.formats.layout import Layout
from harken.results import Segment, Transcript, Word

LONG_PAUSE_S = 3.0
"""Between the starts of two words, where cues are filled without regard to segments: the second begins a cue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """Some text and when it is shown.

    Parameters
    ----------
    start_s, end_s : float
    text : str
        With line breaks, none of them at an end or beside another.
    words : tuple of Word
        What `text` is made of, line breaks included; empty where nothing is known of its words.
    """

    start_s: float
    end_s: float
    text: str
    words: tuple[Word, ...] = ()

    def map_text(self, change: Callable[[str], str]) -> Cue:
        """The same with all of its text changed, that of its words too."""
        words = tuple(replace(word, text=change(word.text)) for word in self.words)
        return replace(self, text=change(self.text), words=words)


class CueBuilder:
    """Cuts segments into cues as they arrive.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout) -> None:
        self._splits_at_words = layout.needs_words
        self._max_width = layout.max_line_width or inf
        self._max_lines = layout.max_line_count or inf
        self._max_words = layout.max_words_per_line or inf
        self._across_segments = max(self._max_width, self._max_lines) < inf
        self._words: list[Word] = []
        self._line_length = 0
        self._n_lines = 1
        self._last_start_s = 0.0

    def feed(self, segment: Segment) -> Iterator[Cue]:
        """Cues that this segment completes; none if it has no text."""
        if not segment.text.strip():
            return
        if not (self._splits_at_words and any(word.text.strip() for word in segment.words)):
            yield from self.flush()
            yield Cue(start_s=segment.start_s, end_s=segment.end_s, text=without_blank_lines(segment.text))
            return
        for index, word in enumerate(segment.words):
            if not self._across_segments and index % self._max_words == 0:
                yield from self.flush()
            yield from self._add(word)
        if not self._across_segments:
            yield from self.flush()

    def flush(self) -> Iterator[Cue]:
        """The cue that has been begun, if any."""
        words, self._words, self._line_length, self._n_lines = tuple(self._words), [], 0, 1
        if words:
            text = without_blank_lines("".join(word.text for word in words))
            yield Cue(start_s=words[0].start_s, end_s=words[-1].end_s, text=text, words=words)

    def _add(self, word: Word) -> Iterator[Cue]:
        """Put a word on the line, on a new one, or into a new cue, which completes the one before."""
        text = " ".join(word.text.splitlines())
        if self._line_length and self._line_length + len(text) > self._max_width:
            self._n_lines += 1
            self._line_length = 0
        pauses = self._across_segments and word.start_s - self._last_start_s > LONG_PAUSE_S
        if pauses or self._n_lines > self._max_lines:
            yield from self.flush()
        self._last_start_s = word.start_s
        if not self._line_length:
            text = text.lstrip()
        if text:
            breaks = bool(self._words) and not self._line_length
            self._line_length += len(text)
            self._words.append(replace(word, text=f"\n{text}" if breaks else text))


CueExpansion = Callable[[Cue], Iterator[Cue]]
"""What one cue whose text is escaped becomes where the times of its words are to show."""


def _unchanged(cue: Cue) -> Iterator[Cue]:
    yield cue


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtitleSyntax:
    """One form made of cues.

    Parameters
    ----------
    header : str
    cue : callable
        One cue, given its number from 1; its text is escaped, and may hold marks of the form.
    escape : callable
        Makes text of speech that the form would take for marks harmless, and keeps line breaks.
    highlight, karaoke : callable
        What becomes of a cue with words under the options of these names.
    """

    header: str = ""
    format_cue: Callable[[int, Cue], str]
    escape: Callable[[str], str] = str
    highlight: CueExpansion = _unchanged
    karaoke: CueExpansion = _unchanged


class SubtitleFormat:
    """`harken.formats.base.Form` of a grammar.

    Parameters
    ----------
    grammar : Grammar
    layout : Layout
    """

    def __init__(self, syntax: SubtitleSyntax, layout: Layout) -> None:
        self._syntax = syntax
        self._cue_builder = CueBuilder(layout)
        self._expand: CueExpansion = _unchanged
        if layout.highlight_words:
            self._expand = syntax.highlight
        if layout.karaoke:
            self._expand = syntax.karaoke
        self._n_written = 0

    def header(self) -> str:
        """What the grammar begins with."""
        return self._syntax.header

    def segment(self, segment: Segment) -> str:
        """The cues that the segment completes."""
        return "".join(self._format_cues(self._cue_builder.feed(segment)))

    def footer(self, transcript: Transcript) -> str:
        """The cue that has been begun."""
        return "".join(self._format_cues(self._cue_builder.flush()))

    def _format_cues(self, cues: Iterable[Cue]) -> Iterator[str]:
        for cue in cues:
            escaped = cue.map_text(self._syntax.escape)
            for expanded in self._expand(escaped) if cue.words else (escaped,):
                self._n_written += 1
                yield self._syntax.format_cue(self._n_written, expanded)


def _tagged(word: Word, before: str, after: str = "") -> str:
    """A word with marks around it, inside of its white space."""
    text = word.text.lstrip()
    return f"{word.text.removesuffix(text)}{before}{text}{after}"


def _underline_words(cue: Cue) -> Iterator[Cue]:
    """One cue a word, and one for each pause (openai/whisper, utils.py, SubtitlesWriter.iterate_result)."""
    texts = [word.text for word in cue.words]
    last_s = cue.start_s
    for i, word in enumerate(cue.words):
        if to_milliseconds(last_s) < to_milliseconds(word.start_s):
            yield replace(cue, start_s=last_s, end_s=word.start_s)
        text = "".join([*texts[:i], _tagged(word, "<u>", "</u>"), *texts[i + 1 :]])
        yield replace(cue, start_s=word.start_s, end_s=word.end_s, text=text)
        last_s = word.end_s


def _cue_times(cue: Cue, decimal_marker: str) -> str:
    start, end = to_milliseconds(cue.start_s), to_milliseconds(cue.end_s)
    return f"{format_timestamp(start, decimal_marker)} --> {format_timestamp(max(end, start + 1), decimal_marker)}"  # players drop a cue of no length


def _srt(number: int, cue: Cue) -> str:
    # SubRip knows no escapes, so an arrow in the text is shortened (openai/whisper, utils.py)
    return f"{number}\n{_cue_times(cue, ',')}\n{re.sub('--+>', '->', cue.text)}\n\n"


def _vtt(number: int, cue: Cue) -> str:
    return f"{_cue_times(cue, '.')}\n{cue.text}\n\n"


def _vtt_escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _vtt_karaoke(cue: Cue) -> Iterator[Cue]:
    """Times inside of the text; they have to lie within the cue and to rise (W3C, WebVTT, 4.2.2)."""
    last, end = to_milliseconds(cue.start_s), to_milliseconds(cue.end_s)
    marked = []
    for word in cue.words:
        start = to_milliseconds(word.start_s)
        tag = ""
        if last < start < end:
            tag, last = f"<{format_timestamp(start)}>", start
        marked.append(_tagged(word, f"{tag}<c>", "</c>"))
    yield replace(cue, text="".join(marked))


def _lrc(number: int, cue: Cue) -> str:
    text = cue.text.replace("\n", " ").replace("\t", " ")
    separator = " " if text.startswith("[") else ""  # or a player would take the text for another tag
    return f"[{_lrc_clock(cue.start_s)}]{separator}{text}\n"


def _lrc_karaoke(cue: Cue) -> Iterator[Cue]:
    """A time before every word and behind the last ("enhanced" lrc, the A2 extension)."""
    words = [replace(word, text=re.sub(r"<(?=\d)", "< ", word.text)) for word in cue.words]
    marked = [_tagged(word, f"<{_lrc_clock(word.start_s)}>") for word in words]
    yield replace(cue, text=f"{''.join(marked)}<{_lrc_clock(cue.end_s)}>")


def _lrc_clock(seconds: float) -> str:
    minutes, rest = divmod(to_centiseconds(seconds), 6000)
    return f"{minutes:02}:{rest // 100:02}.{rest % 100:02}"


def _ass(number: int, cue: Cue) -> str:
    text = cue.text.replace("\n", "\\N")
    start, end = to_centiseconds(cue.start_s), to_centiseconds(cue.end_s)
    return f"Dialogue: 0,{_ass_clock(start)},{_ass_clock(max(end, start + 1))},Default,,0,0,0,,{text}\n"


def _ass_escape(text: str) -> str:
    """Source: FFmpeg, libavcodec/ass.c, ff_ass_bprint_text_event; a word joiner takes the sense from a backslash."""
    return re.sub(r"[{}]", r"\\\g<0>", text.replace("\\", "\\\u2060"))


def _ass_karaoke(cue: Cue) -> Iterator[Cue]:
    r"""The length of every word, and of every pause, in hundredths of a second: ``{\k25}``."""
    now, marked = to_centiseconds(cue.start_s), []
    for word in cue.words:
        start, end = max(now, to_centiseconds(word.start_s)), to_centiseconds(word.end_s)
        pause = rf"{{\k{start - now}}}" if start > now else ""
        now = max(start, end)
        marked.append(_tagged(word, rf"{pause}{{\k{now - start}}}"))
    yield replace(cue, text="".join(marked))


def _ass_clock(hundredths: int) -> str:
    minutes, rest = divmod(hundredths, 6000)
    return f"{minutes // 60}:{minutes % 60:02}:{rest // 100:02}.{rest % 100:02}"


_ASS_HEADER = """[Script Info]
ScriptType: v4.00+
PlayResX: 1920
PlayResY: 1080
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, \
Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, \
MarginV, Encoding
Style: Default,sans-serif,64,&H00FFFFFF,&H00A0A0A0,&H00000000,&H80000000,0,0,0,0,100,100,0,0,1,3,1,2,80,80,60,1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""

SRT = SubtitleSyntax(format_cue=_srt, highlight=_underline_words)
VTT = SubtitleSyntax(
    header="WEBVTT\n\n", format_cue=_vtt, escape=_vtt_escape, highlight=_underline_words, karaoke=_vtt_karaoke
)
ASS = SubtitleSyntax(header=_ASS_HEADER, format_cue=_ass, escape=_ass_escape, karaoke=_ass_karaoke)
LRC = SubtitleSyntax(format_cue=_lrc, karaoke=_lrc_karaoke)

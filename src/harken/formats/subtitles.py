"""The subtitle formats srt, vtt, ass and lrc. Each is a `SubtitleSyntax`: data and functions of a cue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from harken.formats.base import (
    Layout,
    TranscriptFormat,
    format_timestamp,
    main_speaker,
    split_lines,
    to_centiseconds,
    to_milliseconds,
    without_blank_lines,
)
from harken.results import Segment, Transcript, Word

LONG_PAUSE_S = 3.0
"""Time between the starts of two words from which a cue that spans segments is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """A subtitle: text and the time during which it is shown.

    Parameters
    ----------
    start_s, end_s : float
    text : str
        May contain line breaks, but not at an end and not blank lines.
    words : tuple of Word
        The words of `text`, including line breaks; empty if they are unknown.
    speaker : str
        Name of the main speaker of all of it; empty if nobody is known.
    speaker_number : int
        Position of the speaker in the order of appearance, from 1; 0 if nobody is known.
    """

    start_s: float
    end_s: float
    text: str
    words: tuple[Word, ...] = ()
    speaker: str = ""
    speaker_number: int = 0

    def map_text(self, change: Callable[[str], str]) -> Cue:
        """Return the cue with a function applied to its text and that of its words."""
        words = tuple(replace(word, text=change(word.text)) for word in self.words)
        return replace(self, text=change(self.text), words=words)


class CueBuilder:
    """Incremental builder of cues from segments; no cue has words of two main speakers.

    Parameters
    ----------
    layout : Layout
    label : callable
        Returns the visible text that is put before the first line of a cue, by its speaker.
    """

    def __init__(self, layout: Layout, label: Callable[[str], str]) -> None:
        self._label = label
        self._splits_at_words = layout.needs_words
        self._max_width = layout.max_line_width or inf
        self._max_lines = layout.max_line_count or inf
        self._max_words = layout.max_words_per_line or inf
        self._across_segments = max(self._max_width, self._max_lines) < inf
        self._words: list[Word] = []
        self._line_length = 0
        self._n_lines = 1
        self._last_start_s = 0.0
        self._speaker = ""

    def feed(self, segment: Segment) -> Iterator[Cue]:
        """Yield the cues that the next segment completes; none if it has no text."""
        if not segment.text.strip():
            return
        if not (self._splits_at_words and any(word.text.strip() for word in segment.words)):
            yield from self.flush()
            yield Cue(
                start_s=segment.start_s,
                end_s=segment.end_s,
                text=without_blank_lines(segment.text),
                speaker=main_speaker(segment.speakers),
            )
            return
        for index, word in enumerate(segment.words):
            speaker = main_speaker(word.speakers or segment.speakers)
            if speaker != self._speaker or (not self._across_segments and index % self._max_words == 0):
                yield from self.flush()
                self._speaker = speaker
            yield from self._add(word)
        if not self._across_segments:
            yield from self.flush()

    def flush(self) -> Iterator[Cue]:
        """Yield the unfinished cue, if any."""
        words, self._words, self._line_length, self._n_lines = tuple(self._words), [], 0, 1
        if words:
            text = without_blank_lines("".join(word.text for word in words))
            yield Cue(
                start_s=words[0].start_s, end_s=words[-1].end_s, text=text, words=words, speaker=self._speaker
            )

    def _add(self, word: Word) -> Iterator[Cue]:
        """Append a word to the line, a new line, or a new cue; yield the cue that this completes, if any."""
        text = " ".join(split_lines(word.text))
        label_length = 0 if self._n_lines > 1 else len(self._label(self._speaker))
        if self._line_length and label_length + self._line_length + len(text) > self._max_width:
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
"""Converts a cue with escaped text to the cues that show the times of its words."""


def _unchanged(cue: Cue) -> Iterator[Cue]:
    yield cue


def _no_header(layout: Layout) -> str:
    return ""


def _no_label(speaker: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtitleSyntax:
    """The syntax of one subtitle format.

    Parameters
    ----------
    header : callable
        Returns the header.
    format_cue : callable
        Formats a cue, given its number from 1; its text is escaped and may contain markup of the format.
    escape : callable
        Escapes text that the format would take for markup; keeps line breaks.
    label : callable
        Returns what is put before the text of a cue, by its speaker.
    label_is_visible : bool
        False if the label is markup, and takes no room on the line.
    labels_every_cue : bool
        False if a cue of the same speaker as the one before has no label.
    highlight, karaoke : callable
        Expand a cue with words for the layout options of these names.
    """

    header: Callable[[Layout], str] = _no_header
    format_cue: Callable[[int, Cue], str]
    escape: Callable[[str], str] = str
    label: Callable[[str], str] = _no_label
    label_is_visible: bool = True
    labels_every_cue: bool = True
    highlight: CueExpansion = _unchanged
    karaoke: CueExpansion = _unchanged


class SubtitleFormat(TranscriptFormat):
    """The format of a subtitle syntax.

    Parameters
    ----------
    syntax : SubtitleSyntax
    layout : Layout
    """

    def __init__(self, syntax: SubtitleSyntax, layout: Layout) -> None:
        self._syntax, self._layout = syntax, layout
        self._cue_builder = CueBuilder(layout, syntax.label if syntax.label_is_visible else _no_label)
        self._expand: CueExpansion = _unchanged
        if layout.highlight_words:
            self._expand = syntax.highlight
        if layout.karaoke:
            self._expand = syntax.karaoke
        self._n_written = 0
        self._speaker = ""
        self._speaker_numbers: dict[str, int] = {}

    def header(self) -> str:
        """Return the header of the format."""
        return self._syntax.header(self._layout)

    def segment(self, segment: Segment) -> str:
        """Return the cues that the segment completes."""
        return "".join(self._format_cues(self._cue_builder.feed(segment)))

    def footer(self, transcript: Transcript) -> str:
        """Return the unfinished cue, if any."""
        return "".join(self._format_cues(self._cue_builder.flush()))

    def _format_cues(self, cues: Iterable[Cue]) -> Iterator[str]:
        for cue in cues:
            label = self._label(cue.speaker)
            escaped = replace(cue.map_text(self._syntax.escape), speaker_number=self._number(cue.speaker))
            for expanded in self._expand(escaped) if cue.words else (escaped,):
                self._n_written += 1
                labelled = replace(expanded, text=f"{label}{expanded.text}")
                yield self._syntax.format_cue(self._n_written, labelled)

    def _label(self, speaker: str) -> str:
        """Return what to put before the next cue."""
        wanted = bool(speaker) and (self._syntax.labels_every_cue or speaker != self._speaker)
        self._speaker = speaker
        return self._syntax.label(speaker) if wanted else ""

    def _number(self, speaker: str) -> int:
        if not (speaker and self._layout.speakers):
            return 0
        return self._speaker_numbers.setdefault(speaker, len(self._speaker_numbers) + 1)


def _tagged(word: Word, before: str, after: str = "") -> str:
    """Return the text of a word with markup around it, after its leading white space."""
    text = word.text.lstrip()
    return f"{word.text.removesuffix(text)}{before}{text}{after}"


def _underline_words(cue: Cue) -> Iterator[Cue]:
    """Yield one cue per word and per pause (openai/whisper, utils.py, SubtitlesWriter.iterate_result)."""
    texts = [word.text for word in cue.words]
    last_s = cue.start_s
    for i, word in enumerate(cue.words):
        if to_milliseconds(last_s) < to_milliseconds(word.start_s):
            yield replace(cue, start_s=last_s, end_s=word.start_s)
        text = "".join([*texts[:i], _tagged(word, "<u>", "</u>"), *texts[i + 1 :]])
        yield replace(cue, start_s=word.start_s, end_s=word.end_s, text=text)
        last_s = word.end_s


def _cue_times(cue: Cue, decimal_marker: str) -> str:
    start = to_milliseconds(cue.start_s)
    end = max(to_milliseconds(cue.end_s), start + 1)  # players ignore cues of zero length
    return f"{format_timestamp(start, decimal_marker)} --> {format_timestamp(end, decimal_marker)}"


def _name_label(speaker: str) -> str:
    """Return a name and a colon, which subtitle editors know as the name of the speaker."""
    return f"{speaker}: " if speaker else ""


def _srt(number: int, cue: Cue) -> str:
    # SubRip has no escapes, so an arrow in the text is shortened (openai/whisper, utils.py). A search begins only at
    # the first of several dashes, or a long row of them would take time that grows with the square of its length.
    return f"{number}\n{_cue_times(cue, ',')}\n{re.sub('(?<!-)--+>', '->', cue.text)}\n\n"


def _vtt_header(layout: Layout) -> str:
    return "WEBVTT\n\n"


def _vtt(number: int, cue: Cue) -> str:
    return f"{_cue_times(cue, '.')}\n{cue.text}\n\n"


def _vtt_escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _vtt_voice(speaker: str) -> str:
    """Return the tag of a voice; it holds for the whole cue, so it need not be closed (W3C, WebVTT, 4.2.2)."""
    name = re.sub("-$", "&#45;", _vtt_escape(speaker))  # or dashes would make an arrow of the end of the tag
    return f"<v {name}>"


def _vtt_karaoke(cue: Cue) -> Iterator[Cue]:
    """Insert word times, which must increase and be inside the cue (W3C, WebVTT, 4.2.2)."""
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
    separator = " " if text.startswith("[") else ""  # or a player would take the text for a tag
    return f"[{_lrc_clock(cue.start_s)}]{separator}{text}\n"


def _lrc_karaoke(cue: Cue) -> Iterator[Cue]:
    """Insert a time before every word and after the last ("enhanced" lrc, the A2 extension)."""
    words = [replace(word, text=re.sub(r"<(?=\d)", "< ", word.text)) for word in cue.words]
    marked = [_tagged(word, f"<{_lrc_clock(word.start_s)}>") for word in words]
    yield replace(cue, text=f"{''.join(marked)}<{_lrc_clock(cue.end_s)}>")


def _lrc_clock(seconds: float) -> str:
    minutes, rest = divmod(to_centiseconds(seconds), 6000)
    return f"{minutes:02}:{rest // 100:02}.{rest % 100:02}"


def _ass(number: int, cue: Cue) -> str:
    text = cue.text.replace("\n", "\\N")
    start, end = to_centiseconds(cue.start_s), to_centiseconds(cue.end_s)
    style = f"Speaker {(cue.speaker_number - 1) % len(_ASS_COLOURS) + 1}" if cue.speaker_number else "Default"
    name = cue.speaker.replace(",", ";")  # a comma would end the field
    return f"Dialogue: 0,{_ass_clock(start)},{_ass_clock(max(end, start + 1))},{style},{name},0,0,0,,{text}\n"


def _ass_escape(text: str) -> str:
    """Escape braces, and backslashes with a word joiner (FFmpeg, libavcodec/ass.c, ff_ass_bprint_text_event)."""
    return re.sub(r"[{}]", r"\\\g<0>", text.replace("\\", "\\\u2060"))


def _ass_karaoke(cue: Cue) -> Iterator[Cue]:
    r"""Insert the length of every word and pause in hundredths of a second: ``{\k25}``."""
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
{styles}

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
_ASS_STYLE = (
    "Style: {name},sans-serif,64,&H00{colour},&H00A0A0A0,&H00000000,&H80000000,"
    "0,0,0,0,100,100,0,0,1,3,1,2,80,80,60,1"
)
# The colours of Okabe and Ito, which colour-blind people can tell apart, as blue, green and red; brightest first.
_ASS_COLOURS = ("42E4F0", "E9B456", "009FE6", "A779CC", "739E00", "005ED5", "B27200")


def _ass_header(layout: Layout) -> str:
    """Return the header; its styles stand before the speakers are known, so there is one for every colour."""
    colours = {"Default": "FFFFFF"}
    if layout.speakers:
        colours |= {f"Speaker {number}": colour for number, colour in enumerate(_ASS_COLOURS, 1)}
    styles = (_ASS_STYLE.format(name=name, colour=colour) for name, colour in colours.items())
    return _ASS_HEADER.format(styles="\n".join(styles))


SRT = SubtitleSyntax(format_cue=_srt, label=_name_label, highlight=_underline_words)
VTT = SubtitleSyntax(
    header=_vtt_header,
    format_cue=_vtt,
    escape=_vtt_escape,
    label=_vtt_voice,
    label_is_visible=False,
    highlight=_underline_words,
    karaoke=_vtt_karaoke,
)
ASS = SubtitleSyntax(header=_ass_header, format_cue=_ass, escape=_ass_escape, karaoke=_ass_karaoke)
LRC = SubtitleSyntax(format_cue=_lrc, label=_name_label, labels_every_cue=False, karaoke=_lrc_karaoke)

"""The subtitle formats srt, vtt, ass and lrc. Each is a `SubtitleSyntax`: data and functions of a cue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from harken.formats.base import Layout, TranscriptFormat, format_timestamp, to_centiseconds, to_milliseconds
from harken.formats.cues import Cue, CueMaker
from harken.results import Segment, Transcript, Word

CueExpansion = Callable[[Cue], Iterator[Cue]]
"""Converts a cue with escaped text to the cues that show the times of its words."""


def _unchanged(cue: Cue) -> Iterator[Cue]:
    yield cue


def _no_label(speaker: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtitleSyntax:
    """The syntax of one subtitle format."""

    header: Callable[[Layout], str] = lambda layout: ""
    format_cue: Callable[[int, Cue], str]  # given its number from 1; its text is escaped and may contain markup
    escape: Callable[[str], str] = str  # escapes text that would be markup; keeps line breaks
    label: Callable[[str], str] = _no_label  # what is put before the text of a cue, by its speaker
    label_is_visible: bool = True  # False if it is markup, and takes no room on the line
    labels_every_cue: bool = True  # False if a cue of the same speaker as the one before has no label
    breaks_lines: bool = True  # False if a cue is one line
    # They expand a cue with words for the layout options of these names.
    highlight: CueExpansion = _unchanged
    karaoke: CueExpansion = _unchanged


class SubtitleFormat(TranscriptFormat):
    """The format of a subtitle syntax."""

    def __init__(self, syntax: SubtitleSyntax, layout: Layout) -> None:
        self._syntax, self._layout = syntax, layout
        label = syntax.label if syntax.label_is_visible else _no_label
        self._maker = CueMaker(layout, label, breaks_lines=syntax.breaks_lines)
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
        """Return the cues that are final with the segment."""
        return "".join(self._format_cues(self._maker.feed(segment)))

    def footer(self, transcript: Transcript) -> str:
        """Return the cues that are left; an `OptionError` if the layout needs words, and the transcript has none."""
        segments = [segment for segment in transcript.segments if segment.text.strip()]
        if segments and not any(segment.words for segment in segments):
            self._layout.refuse_without_words()
        return "".join(self._format_cues(self._maker.finish()))

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
        if to_milliseconds(word.start_s) == to_milliseconds(word.end_s):
            continue  # the cues beside it have its text
        if to_milliseconds(last_s) < to_milliseconds(word.start_s):
            yield replace(cue, start_s=last_s, end_s=word.start_s)
        text = "".join([*texts[:i], _tagged(word, "<u>", "</u>"), *texts[i + 1 :]])
        last_s = word.end_s
        yield replace(cue, start_s=word.start_s, end_s=last_s, text=text)
    if last_s == cue.start_s or to_milliseconds(last_s) < to_milliseconds(cue.end_s):
        yield replace(cue, start_s=last_s)


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
    end = _lrc_clock(words[-1].end_s)  # the cue may stay longer, to be read
    yield replace(cue, text=f"{''.join(marked)}<{end}>")


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
    header=lambda layout: "WEBVTT\n\n",
    format_cue=_vtt,
    escape=_vtt_escape,
    label=_vtt_voice,
    label_is_visible=False,
    highlight=_underline_words,
    karaoke=_vtt_karaoke,
)
ASS = SubtitleSyntax(header=_ass_header, format_cue=_ass, escape=_ass_escape, karaoke=_ass_karaoke)
LRC = SubtitleSyntax(
    format_cue=_lrc, label=_name_label, labels_every_cue=False, breaks_lines=False, karaoke=_lrc_karaoke
)

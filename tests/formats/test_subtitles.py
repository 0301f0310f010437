"""Tests of layouts with word times: line breaks, cues, highlighting and karaoke."""

from __future__ import annotations

from typing import Any

import pytest

from harken.errors import OptionError
from harken.formats import Layout, Writer, render
from harken.results import Segment, Transcript
from transcripts import spoken

Spans = list[tuple[float, float, str]]

AND_SO: Spans = [
    (0.0, 0.42, " And"), (0.42, 0.9, " so,"), (1.3, 1.5, " my"), (1.5, 2.0, " fellow"), (2.0, 2.6, " Americans,"),
]  # fmt: skip
ASK_NOT: Spans = [
    (2.9, 3.1, " ask"), (3.1, 3.5, " not"), (7.2, 7.5, " what"), (7.5, 7.9, " your"), (7.9, 8.4, " country"),
]  # fmt: skip


def transcript(*segments: Segment) -> Transcript:
    return Transcript(segments=segments, language="en", duration_s=9.0, model="tiny.en")


def written(name: str, *segments: Segment, **layout: Any) -> str:
    return "".join(render(transcript(*segments), name, Layout(**layout)))


def cues(content: str) -> list[tuple[int, int, str]]:
    """Return start and end in milliseconds, and text, of every cue of an srt file."""
    found = []
    for block in content.split("\n\n")[:-1]:
        _, times, text = block.split("\n", 2)
        start, end = times.split(" --> ")
        found.append((milliseconds(start), milliseconds(end), text))
    return found


def milliseconds(clock: str) -> int:
    hours, minutes, seconds = clock.replace(",", "").split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000 + int(seconds)


# The output of openai-whisper 20250625, WriteSRT, for the two segments above.
REFERENCE: list[tuple[dict[str, Any], list[tuple[int, int, str]]]] = [
    (
        {"highlight_words": True},
        [(0, 420, "<u>And</u> so, my fellow Americans,"), (420, 900, "And <u>so,</u> my fellow Americans,"),
         (900, 1300, "And so, my fellow Americans,"), (1300, 1500, "And so, <u>my</u> fellow Americans,"),
         (1500, 2000, "And so, my <u>fellow</u> Americans,"),
         (2000, 2600, "And so, my fellow <u>Americans,</u>"), (2900, 3100, "<u>ask</u> not what your country"),
         (3100, 3500, "ask <u>not</u> what your country"), (3500, 7200, "ask not what your country"),
         (7200, 7500, "ask not <u>what</u> your country"), (7500, 7900, "ask not what <u>your</u> country"),
         (7900, 8400, "ask not what your <u>country</u>")],
    ),
    (
        {"max_line_width": 12},
        [(0, 2600, "And so, my\nfellow\nAmericans,"), (2900, 8400, "ask not what\nyour country")],
    ),
    (
        {"max_line_width": 12, "max_line_count": 2},
        [(0, 2000, "And so, my\nfellow"), (2000, 3500, "Americans,\nask not"),
         (7200, 8400, "what your\ncountry")],
    ),
    (
        {"max_words_per_line": 3},
        [(0, 1500, "And so, my"), (1500, 2600, "fellow Americans,"), (2900, 7500, "ask not what"),
         (7500, 8400, "your country")],
    ),
    (
        {"max_line_width": 16, "max_line_count": 1},
        [(0, 1500, "And so, my"), (1500, 2000, "fellow"), (2000, 3100, "Americans, ask"), (3100, 3500, "not"),
         (7200, 7900, "what your"), (7900, 8400, "country")],
    ),
    (
        {"max_line_width": 9, "max_words_per_line": 4},
        [(0, 2000, "And so,\nmy fellow"), (2000, 2600, "Americans,"), (2900, 7900, "ask not\nwhat your"),
         (7900, 8400, "country")],
    ),
    (
        {"max_line_width": 14, "max_line_count": 2, "highlight_words": True},
        [(0, 420, "<u>And</u> so, my\nfellow"), (420, 900, "And <u>so,</u> my\nfellow"),
         (900, 1300, "And so, my\nfellow"), (1300, 1500, "And so, <u>my</u>\nfellow"),
         (1500, 2000, "And so, my\n<u>fellow</u>"), (2000, 2600, "<u>Americans,</u> ask\nnot"),
         (2600, 2900, "Americans, ask\nnot"), (2900, 3100, "Americans, <u>ask</u>\nnot"),
         (3100, 3500, "Americans, ask\n<u>not</u>"), (7200, 7500, "<u>what</u> your\ncountry"),
         (7500, 7900, "what <u>your</u>\ncountry"), (7900, 8400, "what your\n<u>country</u>")],
    ),
    (
        {"max_line_count": 1},
        [(0, 2600, "And so, my fellow Americans,"), (2900, 8400, "ask not what your country")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "expected"), REFERENCE, ids=[str(layout) for layout, _ in REFERENCE])
def test_cues_equal_those_of_openai_whisper(
    layout: dict[str, Any], expected: list[tuple[int, int, str]]
) -> None:
    assert cues(written("srt", spoken(*AND_SO), spoken(*ASK_NOT), **layout)) == expected


def test_segment_without_words_is_one_cue_and_ends_the_cue_before() -> None:
    without_words = spoken(*ASK_NOT, words=(), text=" ask\nnot")
    found = cues(written("srt", spoken(*AND_SO), without_words, max_line_width=40, max_line_count=2))
    assert found == [(0, 2600, "And so, my fellow Americans,"), (2900, 8400, "ask\nnot")]
    assert cues(written("srt", without_words, highlight_words=True)) == [(2900, 8400, "ask\nnot")]


def test_unfinished_cue_is_written_by_the_footer() -> None:
    writer = Writer("srt", Layout(max_line_width=40, max_line_count=2))
    assert writer.segment(spoken(*AND_SO)) == ""
    assert cues(writer.footer(transcript(spoken(*AND_SO)))) == [(0, 2600, "And so, my fellow Americans,")]


def test_vtt_karaoke_has_a_time_before_each_word() -> None:
    assert written("vtt", spoken(*AND_SO), karaoke=True) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.600\n<c>And</c> <00:00:00.420><c>so,</c> <00:00:01.300><c>my</c> "
        "<00:00:01.500><c>fellow</c> <00:00:02.000><c>Americans,</c>\n\n"
    )


def test_vtt_karaoke_times_increase_within_the_cue() -> None:
    still: Spans = [(1.0, 1.0, " a"), (1.0, 1.5, " b"), (1.5, 1.5, " c"), (2.0, 2.0, " d")]
    assert "<c>a</c> <c>b</c> <00:00:01.500><c>c</c> <c>d</c>" in written("vtt", spoken(*still), karaoke=True)


def test_lrc_karaoke_has_a_time_before_each_word() -> None:
    assert written("lrc", spoken(*AND_SO), karaoke=True, max_words_per_line=3) == (
        "[00:00.00]<00:00.00>And <00:00.42>so, <00:01.30>my<00:01.50>\n"
        "[00:01.50]<00:01.50>fellow <00:02.00>Americans,<00:02.60>\n"
    )
    odd: Spans = [(0.0, 1.0, " <00:05.00>la")]
    assert written("lrc", spoken(*odd), karaoke=True) == "[00:00.00]<00:00.00>< 00:05.00>la<00:01.00>\n"


def test_text_in_brackets_is_not_an_lrc_tag() -> None:
    assert written("lrc", spoken((1.0, 2.0, " [00:05.00] la"))) == "[00:01.00] [00:05.00] la\n"


def test_lrc_joins_broken_lines() -> None:
    assert written("lrc", spoken(*ASK_NOT), max_line_width=12) == "[00:02.90]ask not what your country\n"


def events(content: str) -> list[str]:
    return [line for line in content.splitlines() if line.startswith("Dialogue: ")]


def test_ass_header_and_events_are_written() -> None:
    content = written("ass", spoken(*AND_SO), spoken(*ASK_NOT), max_line_width=12)
    assert content.startswith("[Script Info]\nScriptType: v4.00+\n")
    assert events(content) == [
        "Dialogue: 0,0:00:00.00,0:00:02.60,Default,,0,0,0,,And so, my\\Nfellow\\NAmericans,",
        "Dialogue: 0,0:00:02.90,0:00:08.40,Default,,0,0,0,,ask not what\\Nyour country",
    ]
    style, names = (
        line.partition(": ")[2].split(",")
        for line in content.splitlines()
        if "Style:" in line or "Name, F" in line
    )
    assert len(style) == len(names)


def test_ass_karaoke_covers_the_whole_cue() -> None:
    (event,) = events(written("ass", spoken(*AND_SO), karaoke=True))
    assert event.endswith(r",,{\k42}And {\k48}so, {\k40}{\k20}my {\k50}fellow {\k60}Americans,")


def test_ass_markup_in_text_is_escaped() -> None:
    tricky = spoken((3600.0, 3661.5, r" {\b1}C:\new"))
    assert events(written("ass", tricky)) == [
        "Dialogue: 0,1:00:00.00,1:01:01.50,Default,,0,0,0,,\\{\\\u2060b1\\}C:\\\u2060new"
    ]


def test_karaoke_with_highlighted_words_is_rejected() -> None:
    with pytest.raises(OptionError, match="karaoke=True: allowed is False together with highlight_words=True"):
        Layout(karaoke=True, highlight_words=True)

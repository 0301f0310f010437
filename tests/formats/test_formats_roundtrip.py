"""Properties of the output formats: parsing the written text returns the transcript."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.errors import OptionError
from harken.formats import FORMATS, Layout, RecordingLink, as_json, dump_json, from_json, printable, render
from harken.results import (
    Attempt,
    DroppedSegment,
    Segment,
    Speaker,
    SpeakerTurn,
    Transcript,
    UnwrittenSpeech,
    Word,
)
from transcripts import blocks, parse_cue, parse_srt


def parse_vtt(content):
    header, *cues = blocks(content)
    assert header == ["WEBVTT"]
    for start, end, text in map(parse_cue, cues):
        voice = re.match("<v ([^<>\n]+)>", text)
        spoken = text.removeprefix(voice[0] if voice else "")
        assert "<" not in spoken
        yield start, end, html.unescape(voice[1] if voice else ""), html.unescape(spoken)


def parse_lrc(content):
    for line in content.split("\n")[:-1]:
        tag = re.match(r"\[(\d{2,}):([0-5]\d)\.(\d\d)\](?!\[)", line)
        assert tag is not None
        minutes, seconds, hundredths = map(int, tag.groups())
        yield (minutes * 60 + seconds) * 100 + hundredths, line[tag.end() :].strip()


# What a hostile vocabulary or file name holds: escape sequences, NUL, line separators, directions, lone surrogates.
HOSTILE = [
    "\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\x00", "\x7f", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff",
    "\udcff", "\ud800", "\r", "\r\n", "\n\n", "\t", " ", "-->", "--->", "</script>", "{\\k1}", "&lt;", "[00:05.00]",
    "a", "漢", "-" * 1000,
]  # fmt: skip
# Two surrogates that make a pair are another character in JSON.
hostile_texts = st.lists(st.sampled_from(HOSTILE), max_size=12).map(
    lambda parts: re.sub("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])", "x", "".join(parts))
)
texts = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.text("ab-->< &;lt\t\r\n\x85[]1:.", max_size=30)
    | hostile_texts
)
names = (
    st.sampled_from(["A", "B", "Anna", "", " ", "--", "a" * 3000, "A: b", "x,y", "[00:05.00]", "{\\k1}"])
    | texts
)
speakers = st.just(()) | st.lists(names, min_size=1, max_size=3).map(tuple)
nobody = st.just(())
KEYS = ("segments", "language", "duration", "model", "dropped", "speech", "unwritten", "words", "start")
probabilities = st.floats(0, 1)


@st.composite
def spanned(draw, kind, **fields):
    """Draw a result with a start, an end, and other fields."""
    start_s = draw(st.floats(0, 5e5))
    return kind(
        start_s=start_s,
        end_s=start_s + draw(st.floats(0, 5e3)),
        **{name: draw(values) for name, values in fields.items()},
    )


def many(values, most):
    return st.lists(values, max_size=most).map(tuple)


def segments_of(speakers):
    words = spanned(Word, text=texts, probability=probabilities, speakers=speakers)
    return spanned(
        Segment,
        index=st.integers(0, 1000),
        text=texts,
        tokens=many(st.integers(0, 51865), 3),
        temperature=probabilities,
        avg_logprob=st.floats(),
        compression_ratio=st.floats(),
        no_speech_prob=probabilities,
        seek_s=st.floats(0, 5e5),
        attempts=many(st.builds(Attempt, reason=st.none() | texts), 2),
        words=many(words, 2),
        language=st.none() | st.sampled_from(["en", "de"]),
        hallucination_score=probabilities,
        speakers=speakers,
    )


def transcripts_of(segments, **diarization):
    return st.builds(
        Transcript,
        segments=many(segments, 3),
        language=st.sampled_from(["en", "de"]),
        language_probability=st.none() | probabilities,
        duration_s=st.floats(0, 1e6),
        model=texts,
        task=st.sampled_from(["transcribe", "translate"]),
        dropped=many(st.builds(DroppedSegment, segment=segments, reason=texts), 1),
        speech=st.none() | many(st.tuples(probabilities, st.floats(1, 2)), 2),
        unwritten=many(spanned(UnwrittenSpeech, reason=texts), 2),
        **diarization,
    )


transcripts = transcripts_of(segments_of(nobody))
diarized = transcripts_of(
    segments_of(speakers),
    speakers=many(st.builds(Speaker, name=names, seconds=st.floats(0, 1e6)), 3),
    turns=many(spanned(SpeakerTurn, speaker=names), 4),
)
few = st.none() | st.integers(1, 20)


@st.composite
def layouts(draw):
    marks = draw(st.sampled_from([{}, {"highlight_words": True}, {"karaoke": True}]))
    rules = {
        name: draw(few) for name in ("max_line_width", "max_line_count", "max_words_per_line", "max_cue_s")
    }
    return Layout(**rules, **marks)


def with_text(transcript):
    return [segment for segment in transcript.segments if segment.text.strip()]


def usable(layout, transcript):
    """Return a layout, or the default one for a transcript without words."""
    return layout if any(segment.words for segment in with_text(transcript)) else Layout()


def visible(text):
    """Return text as it is written: control characters, other than line breaks and tabs, as U+FFFD."""
    return re.sub("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text)


def lines(text):
    return [line for each in text.splitlines() if (line := visible(each).strip())]


def one_line(said):
    return " ".join(lines(said.text)).replace("\t", " ")


def times_ms(said):
    return round(said.start_s * 1000), round(said.end_s * 1000)


def table(header, rows, transcript):
    """Return the cells of a table and of the empty line after it, without the last column if nobody told speakers."""
    width = len(header) if transcript.speakers is not None else -1
    return [*(row[:width] for row in (header, *rows)), [""]]


@given(transcript=transcripts | diarized)
def test_parsed_subtitles_and_tables_are_the_segments_and_their_speakers(transcript):
    shown = with_text(transcript)
    named = [name_shown(segment.speakers) for segment in shown]
    texts = ["\n".join(lines(segment.text)) for segment in shown]
    times = [(start, max(end, start + 1)) for start, end in map(times_ms, shown)]
    content = {name: "".join(render(transcript, name)) for name in FORMATS}

    labelled = [f"{name}: {text}" if name else text for name, text in zip(named, texts, strict=True)]
    assert list(parse_srt(content["srt"])) == [
        (*span, re.sub("-{2,}>", "->", text)) for span, text in zip(times, labelled, strict=True)
    ]
    assert list(parse_vtt(content["vtt"])) == [
        (*span, name, text) for span, name, text in zip(times, named, texts, strict=True)
    ]
    tags = list(parse_lrc(content["lrc"]))
    assert [at for at, _ in tags] == [round(segment.start_s * 100) for segment in shown]
    cells = {name: [row.split("\t") for row in content[name].split("\n")] for name in ("tsv", "words.tsv")}
    rows = [[*map(str, times_ms(each)), one_line(each), name_shown(each.speakers)] for each in shown]
    assert cells["tsv"] == table(["start", "end", "text", "speaker"], rows, transcript)
    words = [word for segment in shown for word in segment.words]
    rows = [
        [*map(str, times_ms(word)), f"{word.probability:.4f}", one_line(word), name_shown(word.speakers)]
        for word in words
    ]
    assert cells["words.tsv"] == table(["start", "end", "probability", "word", "speaker"], rows, transcript)
    if transcript.speakers is None:
        assert content["txt"].split("\n") == [*map(one_line, shown), ""]
        assert [text for _, text in tags] == [*map(one_line, shown)]
    assert len(content["txt"].splitlines()) == len(shown)
    assert len(transcript.turns) == len(content["rttm"].splitlines())


def recording_link(name):
    name = re.sub("[\0\ud800]", "", name)  # no system has such names
    return RecordingLink(path=Path(f"{name}.mp3"), transcript_folder=Path())


@given(transcript=diarized, recording=names)
def test_events_of_ass_and_turns_of_rttm_have_the_fields_of_their_format(transcript, recording):
    link = recording_link(recording.replace("/", ""))
    ass, rttm = ("".join(render(transcript, name, recording=link)) for name in ("ass", "rttm"))
    styles = {*re.findall("^Style: ([^,]*),", ass, re.MULTILINE)}
    events = [event.split(",", 9) for event in re.findall("^Dialogue: (.*)$", ass, re.MULTILINE)]
    shown = [name_shown(segment.speakers).replace(",", ";") for segment in with_text(transcript)]
    assert [name for _, _, _, _, name, *_ in events] == shown
    for _, _, _, style, name, *_ in events:
        assert style in styles
        assert (style == "Default") is (name == "")
    rows = [line.split() for line in rttm.splitlines()]
    assert all(len(row) == 10 and row[0] == "SPEAKER" and float(row[4]) > 0 for row in rows)
    assert len({row[1] for row in rows}) <= 1
    assert [float(row[3]) for row in rows] == [round(turn.start_s * 1000) / 1000 for turn in transcript.turns]


def as_stored(value):
    """Return a value as in the json format, where infinite numbers and nan are None."""
    return json.loads(json.dumps(as_json(value)))


@given(value=hostile_texts)
def test_hostile_text_is_the_same_in_json(value):
    written = dump_json({value: [value]}, indent=1)
    assert re.search("[^\n -~\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]", written) is None
    assert json.loads(written) == {value: [value]}


@given(transcript=transcripts | diarized)
def test_json_round_trip_is_lossless(transcript):
    written = "".join(render(transcript, "json"))
    assert as_stored(from_json(json.loads(written))) == as_stored(transcript)
    assert as_stored(from_json(written)) == as_stored(from_json(written.encode())) == as_stored(transcript)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@given(document=values)
def test_document_that_is_no_transcript_is_rejected(document):
    with pytest.raises(OptionError):
        from_json(document)


def letters(text):
    """Return text without spaces and control characters; Python counts some of these as spaces."""
    return re.sub("[\\s\ufffd]", "", visible(text))


def cue_letters(segment):
    """Return the letters of cues made of words: the words of a segment, if it has any."""
    words = "".join(word.text for word in segment.words)
    return letters(words if words.strip() else segment.text)


@given(transcript=transcripts, layout=layouts(), karaoke=st.booleans())
def test_no_layout_loses_text_whatever_the_times(transcript, layout, karaoke):
    for number, *cue in blocks("".join(render(transcript, "srt", usable(layout, transcript)))):
        assert all(line.strip() for line in (number, *cue))
        assert parse_cue(cue)[2]
    layout = usable(replace(layout, highlight_words=False, karaoke=karaoke), transcript)
    expected = "".join(
        cue_letters(segment) if layout.needs_words else letters(segment.text)
        for segment in with_text(transcript)
    )
    content = "".join(render(transcript, "vtt", layout))
    header, *cues = blocks(content)
    assert header == ["WEBVTT"]
    shown = (re.sub("<[^<>]*>", "", parse_cue(cue)[2]) for cue in cues)
    assert sorted(letters("".join(html.unescape(text) for text in shown))) == sorted(expected)
    events = re.findall("^Dialogue: .*,,0,0,0,,(.*)$", "".join(render(transcript, "ass", layout)), re.MULTILINE)
    plain = (re.sub(r"(?<!\\)\{\\k\d+\}", "", event).replace("\\N", "") for event in events)
    written = letters("".join(re.sub(r"\\([{}])", r"\1", text) for text in plain))
    assert sorted(written) == sorted(expected.replace("\\", "\\\u2060"))


@given(
    transcript=transcripts | diarized,
    layout=layouts(),
    recording=hostile_texts,
    name=st.sampled_from([*FORMATS]),
)
def test_no_text_and_no_file_name_brings_control_characters_into_a_file(transcript, layout, recording, name):
    content = "".join(render(transcript, name, usable(layout, transcript), recording_link(recording)))
    assert {char for char in content if category(char) in ("Cc", "Cs")} <= {"\n", "\t"}


def name_shown(speakers):
    """Return the name that subtitles show: on one line, what cannot be seen escaped."""
    return printable(" ".join(speakers[0].split())) if speakers else ""


@given(transcript=diarized, layout=layouts())
def test_no_cue_has_words_of_two_speakers(transcript, layout):
    layout = usable(replace(layout, highlight_words=False, karaoke=False), transcript)
    spoken = []
    for segment in with_text(transcript):
        words = layout.needs_words and any(word.text.strip() for word in segment.words)
        parts = [(w.text, w.speakers or segment.speakers) for w in segment.words] if words else []
        for text, who in parts or [(segment.text, segment.speakers)]:
            spoken += [(letter, name_shown(who)) for letter in letters(text)]
    written = []
    for _, _, name, text in parse_vtt("".join(render(transcript, "vtt", layout))):
        written += [(letter, name) for letter in letters(text)]
    assert sorted(written) == sorted(spoken)

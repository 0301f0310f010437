"""Tests of layouts with word times: line breaks, cues, highlighting and karaoke."""

import re
from dataclasses import replace
from itertools import pairwise
from math import inf
from unicodedata import category

import pytest

from harken.errors import ManifestError, OptionError
from harken.formats import Layout, make_writer, render
from harken.formats.base import columns
from harken.formats.cue_check import check_cues, parse_cues, read_cues
from harken.formats.cues import Cue
from transcripts import parse_srt, spoken, transcript

AND_SO = [
    (0.0, 0.42, " And"), (0.42, 0.9, " so,"), (1.3, 1.5, " my"), (1.5, 2.0, " fellow"), (2.0, 2.6, " Americans,"),
]  # fmt: skip
ASK_NOT = [
    (2.9, 3.1, " ask"), (3.1, 3.5, " not"), (7.2, 7.5, " what"), (7.5, 7.9, " your"), (7.9, 8.4, " country"),
]  # fmt: skip


def written(name, *segments, **layout):
    return "".join(render(transcript(*segments), name, Layout(**layout)))


def cues(*segments, **layout):
    """Return start and end in milliseconds, and text, of the cues in the format srt."""
    return [*parse_srt(written("srt", *segments, **layout))]


def broken_rules(content, **layout):
    return [*check_cues([*parse_cues(content)], Layout(**layout))]


HIGHLIGHTED = [
    (0, 420, "<u>And</u> so, my fellow Americans,"), (420, 900, "And <u>so,</u> my fellow Americans,"),
    (900, 1300, "And so, my fellow Americans,"), (1300, 1500, "And so, <u>my</u> fellow Americans,"),
    (1500, 2000, "And so, my <u>fellow</u> Americans,"), (2000, 2600, "And so, my fellow <u>Americans,</u>"),
]  # fmt: skip


def test_highlighted_words_equal_those_of_openai_whisper():
    assert cues(spoken(*AND_SO), highlight_words=True) == HIGHLIGHTED
    shown = cues(spoken(*AND_SO), highlight_words=True, max_words_per_line=3)
    assert [(end, text) for _, end, text in shown][-1] == (2600, "my fellow <u>Americans,</u>")
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(shown))


def test_a_word_without_a_length_is_shown_but_never_highlighted():
    oh, well, so = (0.0, 0.0, " Oh"), (0.0, 0.5, " well"), (0.5, 0.5, " so.")
    for rules in ({}, {"subtitle_style": "plain"}):
        shown = cues(spoken(oh, well, so), highlight_words=True, **rules)
        assert shown[0] == (0, 500, "Oh <u>well</u> so.")
        assert all(end <= start for (_, end, _), (start, _, _) in pairwise(shown))
        assert [text for _, _, text in cues(spoken(oh), highlight_words=True, **rules)] == ["Oh"]


def said(text, *, letters_s=14.0, start_s=0.0, pause_s=0.5):
    """Return words that are said at a speed, with a pause after each sentence."""
    spans = []
    for word in re.findall(r" ?\S[^ 漢]*", text):
        seconds = columns(word) / letters_s
        spans.append((start_s, start_s + seconds, word))
        start_s += seconds + pause_s * word.endswith((".", "?"))
    return spans


TALE = said(
    " It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "
    "Why? We had everything before us, we had nothing before us. Mr. Lorry, who had been idle a long time and had just "
    "poured out his last glassful of wine with as complete an appearance of satisfaction as is ever to be found in an "
    "elderly gentleman of a fresh complexion, got to the end of a bottle. It was so."
)


def test_cues_end_with_sentences_and_clauses_and_have_two_lines_of_about_the_same_width():
    assert [text for _, _, text in cues(spoken(*TALE), subtitle_style="plain")] == [
        "It was the best of times,\nit was the worst of times,",
        "it was the age of wisdom,\nit was the age of foolishness. Why?",
        "We had everything before us,\nwe had nothing before us.",
        "Mr. Lorry, who had been idle a long time\nand had just poured out his last glassful",
        "of wine with as complete an appearance\nof satisfaction as is ever to be found",
        "in an elderly gentleman of a fresh\ncomplexion, got to the end of a bottle.",
        "It was so.",
    ]


@pytest.mark.parametrize(
    ("language", "cues_shown"),
    [
        ("el", "Πού πας τώρα; | Πάω στο σπίτι μου για να φάω. | Θέλεις να έρθεις μαζί μου;"),
        ("ur", "آپ کہاں جا رہے ہیں؟ | میں گھر جا رہا ہوں۔ | آپ بھی میرے ساتھ چلیں۔"),
        ("hy", "Բարև ձեզ։ Ինչպե՞ս եք դուք։ | Ես լավ եմ, շնորհակալություն։ | Վաղը մենք գնում ենք Երևան։"),
        (
            "de",
            "Am 21. Oktober 1932 fuhr er mit dem Zug nach Wien, wo der Band usw. erschien. | Danach nie wieder.",
        ),
        ("es", "La Sra. García llegó a las 3 p.m. con el Sr. López. | ¿Cómo está usted?"),
    ],
)
def test_cues_end_with_sentences_in_any_language_and_not_with_abbreviations(language, cues_shown):
    words = said(" " + cues_shown.replace("| ", ""), pause_s=0.0)
    found = cues(spoken(*words, language=language), subtitle_style="plain")
    assert " | ".join(text.replace("\n", " ") for *_, text in found) == cues_shown


def test_a_word_in_several_parts_is_one_word_of_a_cue():
    for parts, shown in (
        ([" L", "'eau", " est", " peut", "-être", " là"], ["L'eau", "est", "peut-être", "là"]),
        (["ท", "ี", "่", "น", "ี", "่"], ["ที่", "นี่"]),  # vowels and tones, which the model writes as words
    ):
        spans = [(0.5 * i, 0.5 * i + 0.5, part) for i, part in enumerate(parts)]
        found = cues(spoken(*spans), max_words_per_line=1)
        assert [text for *_, text in found] == shown


LAYOUTS = [
    {"subtitle_style": "netflix"},
    {"subtitle_style": "bbc"},
    {"max_line_width": 30, "max_line_count": 3},
    {"max_line_width": 20, "max_line_count": 1, "max_reading_speed": 25},
    {"max_cue_s": 3.0, "min_gap_s": 0.25},
]


@pytest.mark.parametrize("speakers", [(), ("Anna",)])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_cues_of_unhurried_speech_break_no_rule_however_it_is_cut_into_segments(layout, speakers):
    whole = written("srt", spoken(*TALE, speakers=speakers), **layout)
    unavoidable = {"max_reading_speed", "min_cue_s"} if speakers else set()  # a label is read, and not spoken
    assert {each.rule for each in broken_rules(whole, **layout)} <= unavoidable
    parts = [spoken(*TALE[start : start + 7], speakers=speakers) for start in range(0, len(TALE), 7)]
    assert written("srt", *parts, **layout) == whole
    writer = make_writer("srt", Layout(**layout))
    assert len("".join(map(writer.segment, parts))) > len(whole) / 4  # while it is spoken
    left, gap_ms = list(TALE), 1000 * Layout(**layout).rules("").min_gap_s
    for start, end, text in parse_srt(whole):
        n_words = len(text.removeprefix("Anna: ").split())
        shown, left = left[:n_words], left[n_words:]
        assert start == round(1000 * shown[0][0])
        assert end >= min(1000 * shown[-1][1], 1000 * left[0][0] - gap_ms if left else inf) - 1


def test_cues_are_cut_in_pauses_and_hold_none_of_more_than_two_seconds():
    assert len(cues(spoken((0.0, 0.5, " Yes"), (2.5, 3.0, " sir.")), subtitle_style="plain")) == 1
    assert len(cues(spoken((0.0, 0.5, " Yes"), (2.51, 3.0, " sir.")), subtitle_style="plain")) == 2
    assert len(cues(spoken(*said(" Really? Certainly. Perhaps.")), subtitle_style="plain")) == 3
    first = said(" this is what we have told each and every one of them")
    rest = said(" that they will never be there when the others come home", start_s=first[-1][1] + 0.5)
    assert [text.split()[0] for *_, text in cues(spoken(*first, *rest), subtitle_style="plain")] == [
        "this",
        "that",
    ]


def test_wide_characters_count_as_such():
    chinese = said("漢" * 60, letters_s=12)
    found = cues(spoken(*chinese), subtitle_style="plain")
    assert max(len(line) for _, _, text in found for line in text.split("\n")) <= 16
    assert "".join(text for _, _, text in found).replace("\n", "") == 60 * "漢"
    assert broken_rules(written("srt", spoken(*chinese), subtitle_style="plain")) == []


@pytest.mark.parametrize(
    ("words", "width"),
    [
        (" C'est | « | beau | » | : | je | vous | le | dis | ; | allez | y | ! | Oui | ?", 12),
        ("他|说|：“|你|看|过|《|红|楼|梦|》|吗|？”|我|在|（|家|里|）|看|过|，|“|很|好|看|”|。", 7),
        ("ส|ว|ั|ส|ด|ี|ค|ร|ั|บ|ว|ั|น|น|ี้|เ|ข|า|ไ|ป|แ|ล|ะ|โ|ร|ง|เ|ร|ี|ย|น|ไ|ท|ย|อ|า|ก|า|ศ|ด|ี|ม|า|ก", 5),
        ("も|う|少|し|じ|っ|く|り|シ|ョ|ー|を|見|せ|る|と|ゲ|ー|ム|の|チ|ャ|ン|ス|が|も|っ|と|あ|る", 5),
        ("မ|ြ|န်|မ|ာ|စ|က|ား|ပ|ြ|ော|ပ|ါ|သ|ည်|မ|ြ|န်|မ|ာ|စ|က|ား|လ|ာ|ပ|ါ", 7),
    ],
    ids=["French", "Chinese", "Thai", "Japanese", "Burmese"],
)
def test_no_line_begins_with_a_mark_that_closes_nor_ends_with_one_that_opens(words, width):
    spans = [(0.3 * i, 0.3 * i + 0.3, word) for i, word in enumerate(words.replace(" | ", "| ").split("|"))]
    found = cues(spoken(*spans), max_line_width=width)
    lines = [line for _, _, text in found for line in text.split("\n")]
    assert "".join(lines).replace(" ", "") == words.replace("|", "").replace(" ", "")
    assert [
        line
        for line in lines
        if line[0] in "»:;!?》）”，。？าะっーョャ"
        or line[-1] in "«《（“เแโไ"
        or category(line[0]).startswith("M")
    ] == []


def test_gaps_leave_the_cue_of_every_short_word_half_of_its_time():
    short = said(" It was I", letters_s=50)
    found = cues(spoken(*short), max_words_per_line=1)
    assert [(start, end) for start, end, _ in found] == [(0, 30), (60, 100), (140, 970)]


def test_who_speak_at_once_have_cues_at_once_in_order_of_their_start():
    first = said(" I believe that this nation should commit itself to achieving the goal before")
    rest = said(" this decade is out.", start_s=first[-1][1])
    segments = [
        spoken(*first, speakers=("A",)),
        spoken(*said(" It was the best of times.", start_s=1.0), speakers=("B",)),
        spoken(*rest, speakers=("A",)),
    ]
    found = cues(*segments, subtitle_style="plain")
    assert [(start, text.replace("\n", " ")) for start, _, text in found] == [
        (0, "A: I believe that this nation"),
        (1000, "B: It was the best of times."),
        (1929, "A: should commit itself to achieving the goal before this decade is out."),
    ]
    for name in ("srt", "vtt"):
        assert broken_rules(written(name, *segments, subtitle_style="plain"), subtitle_style="plain") == []


def test_a_cue_ends_before_the_next_speaker_and_before_a_segment_without_words():
    yes, no = spoken((0.0, 0.3, " Yes."), speakers=("A",)), spoken((0.4, 2.0, " No, sir."), speakers=("B",))
    for following in (no, replace(no, words=())):
        assert cues(yes, following, subtitle_style="plain")[0] == (0, 317, "A: Yes.")


GAP = " s before the next; allowed are 0.083 s and more"
BROKEN = {
    ((1, 1.828, "Yes."),): "1 shown for 0.83 s; allowed are 0.83 s and more",
    ((1, 1.829, "Yes"),): "",  # as times are rounded
    ((1, 8.002, "Yes."), (8.084, 9.5, "No.")): "1 shown for 7.00 s; allowed are up to 7 s",
    ((1, 8.001, "I say"), (8.082, 9, "it is.")): f"1 0.081{GAP}",
    ((1, 2, "a b", "A"), (1.5, 3, "c d", "B"), (2, 4, "e f", "A"), (4, 5, "g h", "B")): f"1 0.000{GAP} | 3 0.000{GAP}",
    ((1, 1, "I"),): "1 666.7 characters a second; allowed are 17 | 1 shown for 0.00 s; allowed are 0.83 s and more",
    ((1, 3, "Yes\nor\nno, I say."),): "1 3 lines; allowed are 2 | 1 a word alone, torn out of its sentence",
    ((1, 2, "It was\nmine"),): "",
    ((1, 2, "It was not\nmine"),): "1 a word alone, torn out of its sentence",
    ((1, 6, "漢" * 17 + "\n漢漢漢"),): "1 17 characters on a line; allowed are 16 | 1 20 words; allowed are 19",
    ((1, 6, "漢" * 17 + "x" * 17),): "1 51 characters on a line; allowed are 42",
    ((1, 6, "漢" * 18 + "x" * 17),): "1 26 characters on a line; allowed are 16",
    ((1, 2, "漢" * 10),): "1 10.0 characters a second; allowed are 9",
    ((1, 2, "I said it, to me."),): "",
    ((1, 2, "I said it\nto you all."),): "1 21.0 characters a second; allowed are 17",
    ((1, 2, "It was"), (2.1, 3, "he.")): "2 a word alone, torn out of its sentence",
    ((1, 2, "It was"), (4.001, 5, "he.")): "",
    ((1, 2, "It was."), (2.1, 3, "He"), (5, 6, "it is.")): "2 a word alone, torn out of its sentence",
    ((1, 2, "It was."), (2.1, 3, "He"), (5.001, 6, "it is.")): "",
    ((1, 2, "It was."), (2.1, 3, "He."), (3.1, 4, "Is.")): "",
}  # fmt: skip


@pytest.mark.parametrize("spans", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_rule_is_told(spans):
    found = [Cue(start_s=at, end_s=to, text=text, speaker="".join(who)) for at, to, text, *who in spans]
    broken = check_cues(found, Layout(max_words_per_line=19))
    assert " | ".join(f"{each.number} {each}" for each in broken) == BROKEN[spans]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_cues_of_any_program_are_read_without_markup(tmp_path, line_end):
    content = (
        "\n1\n00:01.500 --> 00:02.000 align:start\n \n<v.loud Anna B>Hello &amp;\n<00:01.750><c>hello.</c> \n \n"
        "NOTE none\n\nintro\n01:02:03,004  -->  01:02:04,500\n{\\an8}Bob: Yes.\n<i> </i>\n\n00:05.000 --> 00:06.000"
    )
    (tmp_path / "a.vtt").write_bytes(content.replace("\n", line_end).encode())
    assert read_cues(tmp_path / "a.vtt") == [
        Cue(start_s=1.5, end_s=2.0, text="Hello &\nhello.", speaker="Anna B"),
        Cue(start_s=3723.004, end_s=3724.5, text="Bob: Yes.", speaker="Bob"),
    ]


def test_times_that_cannot_be_read_are_refused_and_their_cue_is_not_left_out(tmp_path):
    subtitles = tmp_path / "a.srt"
    subtitles.write_text("1\n00:00:01,500 --> 00:00:02,500\nOne\n\n2\n0:00:03,5 --> 0:00:04,5\nTwo\n")
    with pytest.raises(
        ManifestError, match=r"a\.srt:6: times='0:00:03,5 --> 0:00:04,5': allowed is a line such as"
    ):
        read_cues(subtitles)


def test_segment_without_words_is_one_cue_and_ends_the_cue_before():
    without_words = spoken(*ASK_NOT, words=(), text=" ask\nnot")
    found = cues(spoken(*AND_SO), without_words, subtitle_style="plain")
    assert found == [(0, 2600, "And so, my fellow Americans,"), (2900, 8400, "ask\nnot")]
    found = cues(without_words, spoken((8.5, 9.0, " you")), highlight_words=True)
    assert found == [(2900, 8400, "ask\nnot"), (8500, 9000, "<u>you</u>")]


@pytest.mark.parametrize(
    "layout", [{"subtitle_style": "bbc"}, {"max_line_width": 42}, {"min_gap_s": 0.0}, {"karaoke": True}]
)
def test_layout_of_words_is_refused_for_a_transcript_without_any(layout):
    without_words = spoken(*ASK_NOT, words=())
    ((name, value),) = layout.items()
    for form in ("srt", "vtt", "ass", "lrc"):
        with pytest.raises(
            OptionError, match=rf"^{name}={value!r}: allowed is \w+ for a transcript without words"
        ):
            written(form, without_words, **layout)
        assert "ask" not in written(form, **layout)  # there is no text
    assert "ask" in written("txt", without_words, **layout)


def test_vtt_karaoke_has_a_time_before_each_word_that_increases_within_the_cue():
    assert written("vtt", spoken(*AND_SO), karaoke=True) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.600\n<c>And</c> <00:00:00.420><c>so,</c> <00:00:01.300><c>my</c> "
        "<00:00:01.500><c>fellow</c> <00:00:02.000><c>Americans,</c>\n\n"
    )
    still = [(1.0, 1.0, " a"), (1.0, 1.5, " b"), (1.5, 1.5, " c"), (2.0, 2.0, " d")]
    assert "<c>a</c> <c>b</c> <00:00:01.500><c>c</c> <c>d</c>" in written("vtt", spoken(*still), karaoke=True)


def test_lrc_karaoke_has_a_time_before_each_word():
    assert written("lrc", spoken(*AND_SO), karaoke=True, max_words_per_line=3) == (
        "[00:00.00]<00:00.00>And <00:00.42>so,<00:00.90>\n"
        "[00:01.30]<00:01.30>my <00:01.50>fellow <00:02.00>Americans,<00:02.60>\n"
    )
    shown_longer = written("lrc", spoken((1.0, 1.5, " Yes.")), karaoke=True, min_cue_s=2.0)
    assert shown_longer == "[00:01.00]<00:01.00>Yes.<00:01.50>\n"


def test_times_of_words_end_with_a_cue_that_ends_before_them():
    brief = [
        (0.0, 0.2, " What"),
        (0.2, 0.22, " do"),
        (0.22, 0.24, " you"),
        (0.24, 0.26, " say?"),
        (0.26, 1.0, " Yes."),
    ]
    shown = {"max_words_per_line": 4, "min_gap_s": 0.08}
    tags = re.findall(r"<(\d\d:\d\d\.\d\d)>", written("lrc", spoken(*brief), karaoke=True, **shown))
    assert tags == sorted(tags)
    for event in events(written("ass", spoken(*brief), karaoke=True, **shown)):
        start, end = (round(100 * float(clock)) for clock in re.findall(r"0:00:(\d\d\.\d\d)", event))
        assert sum(map(int, re.findall(r"k(\d+)}", event))) <= end - start


def test_lrc_joins_lines_and_has_no_tags_of_the_text():
    assert written("lrc", spoken((1.0, 2.0, " [00:05.00] la"))) == "[00:01.00] [00:05.00] la\n"
    odd = written("lrc", spoken((0.0, 1.0, " <00:05.00>la")), karaoke=True)
    assert odd == "[00:00.00]<00:00.00>< 00:05.00>la<00:01.00>\n"
    joined = written("lrc", spoken(*ASK_NOT), max_line_width=12)
    assert joined == "[00:02.90]ask not\n[00:07.20]what your country\n"
    japanese = spoken((0.0, 1.0, "円高"), (1.0, 2.0, "ショック"), (2.0, 3.0, "を"), (3.0, 4.0, "和らげ"))
    assert written("lrc", japanese, max_line_width=6) == "[00:00.00]円高ショックを和らげ\n"


def events(content):
    return [line for line in content.splitlines() if line.startswith("Dialogue: ")]


def test_ass_header_and_events_are_written():
    content = written("ass", spoken(*AND_SO), spoken(*ASK_NOT), max_line_width=12)
    assert content.startswith("[Script Info]\nScriptType: v4.00+\n")
    assert events(content) == [
        "Dialogue: 0,0:00:00.00,0:00:00.90,Default,,0,0,0,,And so,",
        "Dialogue: 0,0:00:01.30,0:00:02.60,Default,,0,0,0,,my fellow\\NAmericans,",
        "Dialogue: 0,0:00:02.90,0:00:03.73,Default,,0,0,0,,ask not",
        "Dialogue: 0,0:00:07.20,0:00:08.40,Default,,0,0,0,,what your\\Ncountry",
    ]
    style, names = (
        line.partition(": ")[2].split(",")
        for line in content.splitlines()
        if "Style:" in line or "Name, F" in line
    )
    assert len(style) == len(names)


def test_ass_karaoke_covers_the_whole_cue():
    (event,) = events(written("ass", spoken(*AND_SO), karaoke=True))
    assert event.endswith(r",,{\k42}And {\k48}so, {\k40}{\k20}my {\k50}fellow {\k60}Americans,")


def test_ass_markup_in_text_is_escaped():
    tricky = spoken((3600.0, 3661.5, r" {\b1}C:\new"))
    assert events(written("ass", tricky)) == [
        "Dialogue: 0,1:00:00.00,1:01:01.50,Default,,0,0,0,,\\{\\\u2060b1\\}C:\\\u2060new"
    ]


def test_options_that_exclude_each_other_are_refused():
    with pytest.raises(OptionError, match="karaoke=True: allowed is False together with highlight_words=True"):
        Layout(karaoke=True, highlight_words=True)
    with pytest.raises(OptionError, match=r"^max_cue_s=0.5: allowed is at least min_cue_s, 0.83$"):
        Layout(max_cue_s=0.5)
    with pytest.raises(OptionError, match=r"^min_cue_s=8.0: allowed is at most max_cue_s, 7$"):
        Layout(min_cue_s=8.0)

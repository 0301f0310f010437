"""The page of a transcript in a browser: its text, and names of speakers, edited and kept in the page that is saved."""

import re

import pytest
from browser import find_browser, open_page

import transcripts
from fakes.live_sessions import make_segment
from harken.formats import from_json, render
from harken.results import DroppedSegment, Speaker, SpeakerTurn, Transcript, Word

pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")

HOSTILE = "</script><b>\u202e&\x85"


def segment(start_s, text, *speakers):
    word = Word(start_s=start_s, end_s=start_s + 1, text=text, probability=0.5, speakers=speakers)
    times = {"start_s": start_s, "end_s": start_s + 1}
    return make_segment(word, **times, index=int(start_s), speakers=speakers)


TALK = Transcript(
    segments=(
        *(segment(0.0, " Good day.", "A"), segment(1.0, " Yes.", "B", "C"), segment(2.0, " Bye.", "C", "A")),
    ),
    language="en",
    duration_s=3.5,
    model="m",
    dropped=(DroppedSegment(segment=segment(3.0, " Untertitel", "C"), reason="a known phrase"),),
    speech=((0.0, 3.0),),
    speakers=tuple(Speaker(name=name, seconds=1.25) for name in ("A", "B", "C")),
    turns=tuple(SpeakerTurn(start_s=i, end_s=i + 1, speaker=name) for i, name in enumerate("ABC")),
)

PLAIN = Transcript(segments=(segment(0.0, " Good day."),), language="en", duration_s=3.5, model="m")


def data_of(page):
    return from_json(
        re.search(r'<script type="application/json" id="transcript">(.*?)</script>', page, re.DOTALL)[1]
    )


def edit(number, name):
    field = f"document.querySelectorAll('#names input')[{number}]"
    escaped = "".join(f"\\u{ord(char):04x}" for char in name)
    return f"{field}.value = '{escaped}'; {field}.dispatchEvent(new Event('input'))"


def test_edited_names_are_shown_and_saved_and_a_page_without_speakers_has_none(tmp_path):
    written = "".join(render(TALK, "html"))
    (tmp_path / "talk.html").write_text(written, encoding="utf-8", newline="\n")
    labels = "[...document.querySelectorAll('.who')].map((label) => label.textContent)"
    with open_page((tmp_path / "talk.html").as_uri(), tmp_path) as page:
        assert page.run(labels) == ["A:", "B:", "C:"]
        unchanged = page.download("#save").decode()
        assert data_of(unchanged) == data_of(written) == TALK
        page.run(edit(0, HOSTILE))
        page.run(edit(1, "Ann"))
        page.run(edit(2, " Ann "))
        assert page.run(labels) == [f"{HOSTILE}:", "Ann:", "Ann:"]
        saved = page.download("#save").decode()
        (tmp_path / "saved.html").write_text(saved, encoding="utf-8", newline="\n")
        page.open((tmp_path / "saved.html").as_uri())
        assert page.run(labels) == [f"{HOSTILE}:", "Ann:"]
        again = page.download("#save").decode()
        (tmp_path / "plain.html").write_text("".join(render(PLAIN, "html")), encoding="utf-8")
        page.open((tmp_path / "plain.html").as_uri())
        assert page.run("document.getElementById('speakers').hidden")
        assert page.run(labels) == []
        assert page.problems == []
    assert saved == again
    read = data_of(saved)
    for said in (read.segments, [segment.words[0] for segment in read.segments]):
        assert [each.speakers for each in said] == [(HOSTILE,), ("Ann",), ("Ann", HOSTILE)]
    assert read.dropped[0].segment.speakers == ("Ann",)
    assert [turn.speaker for turn in read.turns] == [HOSTILE, "Ann", "Ann"]
    assert read.speakers == (Speaker(name=HOSTILE, seconds=1.25), Speaker(name="Ann", seconds=2.5))
    assert not re.search("[\x7f-\x9f\u202a-\u202e]", saved)


def test_a_translation_without_word_times_is_shown_as_english_text(tmp_path):
    said = transcripts.segment(0.0, 1.0, " Good day.", language="de")
    translation = Transcript(segments=(said,), language="de", duration_s=1.0, model="m", task="translate")
    (tmp_path / "talk.html").write_text("".join(render(translation, "html")), encoding="utf-8")
    with open_page((tmp_path / "talk.html").as_uri(), tmp_path) as page:
        shown = page.run(
            "[...document.querySelectorAll('#text p')].map((each) => [each.lang, each.textContent])"
        )
        assert shown == [["en", "Good day."]]
        assert page.problems == []

"""Transcripts rendered as files, and as events while they are made."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.live_sessions import make_segment
from harken.formats import FORMATS, from_json, render
from harken.results import Transcript, Word
from harken.serve.rest.forms import Form
from harken.serve.rest.transcription_form import parse_transcription_form
from harken.serve.rest.transcripts import MEDIA_TYPES, TranscriptionEvents, transcript_json
from harken.serve.work.jobs import FileUpdate

PATH = "/v1/harken/render"
GOOD = Word(start_s=0.5, end_s=0.9, text=" Good", probability=0.9)
MORNING = Word(start_s=0.9, end_s=1.4, text=" <morning>.", probability=0.8)
SEGMENT = make_segment(GOOD, MORNING, start_s=0.5, end_s=1.4)
TRANSCRIPT = Transcript(segments=(SEGMENT,), language="en", duration_s=2.0, model="tones")
DOCUMENT = transcript_json(TRANSCRIPT, "tones")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_that_of_the_command_line(http, name):
    answer = http.post(f"{PATH}?format={name}", json=DOCUMENT)
    assert answer.text == "".join(render(TRANSCRIPT, name))
    assert answer.headers["content-type"].startswith(MEDIA_TYPES[name])
    assert answer.headers["content-disposition"] == f'attachment; filename="transcript.{name}"'
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_bad_transcripts_and_formats_are_refused_in_one_line(http):
    for query, content, param in (
        ("", b"{}", "format"),
        ("?format=exe", b"{}", "format"),
        ("?format=srt", b"{}", "transcript.segments"),
        ("?format=srt", b"no JSON", "transcript"),
        ("?format=srt", b"[" * 100_000, "transcript"),
        ("?format=srt", json.dumps(DOCUMENT | {"duration": -1}).encode(), "transcript.duration"),
    ):
        answer = http.post(f"{PATH}{query}", content=content)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert len(error["message"].splitlines()) == 1


def test_a_transcript_that_is_too_large_is_refused(http, monkeypatch):
    monkeypatch.setattr("harken.serve.rest.routes.MAX_TRANSCRIPT_BYTES", 100)
    answer = http.post(f"{PATH}?format=srt", json=DOCUMENT)
    assert answer.status_code == 413


VALUES = st.none() | st.integers() | st.text() | st.floats() | st.just([{}])
CHANGES = st.dictionaries(st.sampled_from([*DOCUMENT]), VALUES, max_size=3)


@given(changes=CHANGES, text=st.text(max_size=20), name=st.sampled_from([*FORMATS]))
@settings(max_examples=20)
def test_any_transcript_is_rendered_or_refused(http, changes, text, name):
    segments = [DOCUMENT["segments"][0] | {"text": text}]
    answer = http.post(f"{PATH}?format={name}", content=json.dumps(DOCUMENT | {"segments": segments} | changes))
    assert answer.status_code in (200, 400), answer.text


def test_a_lone_surrogate_is_no_failure(http):
    for name in FORMATS:
        segments = [DOCUMENT["segments"][0] | {"text": "\ud800", "words": []}]
        document = json.dumps(DOCUMENT | {"segments": segments, "language": "\ud800", "model": "\ud800"})
        assert http.post(f"{PATH}?format={name}", content=document).status_code == 200
    assert from_json(DOCUMENT) == TRANSCRIPT


TEXTS = st.lists(st.lists(st.text(" \n\u3000ab.", max_size=4), max_size=3), max_size=5)


@given(texts=TEXTS)
@example(texts=[[" ", " a", " "], [], [" b "], ["  "]])
def test_the_deltas_are_the_text_wherever_spaces_are(texts):
    asked = parse_transcription_form(Form([("model", "tones")]), "transcribe")
    events = TranscriptionEvents(asked, None)
    updates = [[replace(SEGMENT, text=text, words=()) for text in window] for window in texts]
    steps = [FileUpdate(segments=segments, done_s=0.0) for segments in updates]
    deltas = [event["delta"] for step in steps for event in events.update(step)]
    segments = tuple(segment for window in updates for segment in window)
    transcript = Transcript(segments=segments, language="en", duration_s=1.0, model="tones")
    (done,) = events.done(transcript)
    assert "".join(deltas) == done["text"] == transcript.text
    assert all(deltas), "an empty delta says nothing"

"""The events of a transcription, without a server."""

from __future__ import annotations

import dataclasses

from hypothesis import example, given
from hypothesis import strategies as st
from test_render import SEGMENT

from harken.results import Transcript
from harken.serve.rest.forms import Form
from harken.serve.rest.transcription_form import parse_transcription_form
from harken.serve.rest.transcripts import TranscriptionEvents
from harken.serve.work.file_job import FileUpdate

TEXTS = st.lists(st.lists(st.text(" \n\u3000ab.", max_size=4), max_size=3), max_size=5)


@given(texts=TEXTS)
@example(texts=[[" ", " a", " "], [], [" b "], ["  "]])
def test_the_deltas_are_the_text_wherever_spaces_are(texts: list[list[str]]) -> None:
    asked = parse_transcription_form(Form([("model", "tones")]), "transcribe")
    events = TranscriptionEvents(asked, None)
    updates = [[dataclasses.replace(SEGMENT, text=text, words=()) for text in window] for window in texts]
    deltas = [
        event["delta"]
        for segments in updates
        for event in events.update(FileUpdate(segments=segments, done_s=0.0))
    ]
    segments = tuple(segment for window in updates for segment in window)
    transcript = Transcript(segments=segments, language="en", duration_s=1.0, model="tones")
    (done,) = events.done(transcript)
    assert "".join(deltas) == done["text"] == transcript.text
    assert all(deltas), "an empty delta says nothing"

"""The API of whisper-asr-webservice, for Bazarr, Obsidian and keyboards: a file in a form, and all else in the query.

Some of these clients take any body for a transcript, whatever its status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, Response

from harken.formats import dump_json, render
from harken.results import Segment, Transcript
from harken.serve.rest.fields import (
    FLAG,
    LANGUAGE,
    TEXT,
    WHOLE,
    Field,
    choice,
    field_names,
    read_fields,
    transcribe_options,
)
from harken.serve.rest.files import Dialect
from harken.serve.rest.forms import Form
from harken.serve.rest.transcription_form import TranscriptionRequest
from harken.serve.rest.transcripts import segment_json, word_json
from harken.speakers.diarizer import SpeakerOptions
from harken.text import LANGUAGES
from harken.transcribe import TranscribeOptions
from harken.transcribe.options import TASKS

OUTPUTS = ("txt", "vtt", "srt", "tsv", "json")
PLAIN_TEXT = "text/plain"
MAX_NAME_CHARS = 200
_NO_HOURS = partial(re.compile(r"^(?:00:)?(\S+) --> (?:00:)?(?=\d\d:\d\d\.)", re.MULTILINE).sub, r"\1 --> ")
"""Leaves out hours that are 0 in vtt, as these clients know it."""

RAW_FIELDS = {
    "encode": Field(
        "The file is a recording; false: it is s16le, 16 kHz, mono, without a header.",
        lambda form, name: form.text(name) is None or form.flag(name),
        {"type": "boolean", "default": True},
    )
}
FIELDS: Mapping[str, Field] = RAW_FIELDS | {
    "task": Field("translate is into English.", *choice(*TASKS, strict=False), option="task"),
    "language": Field("Language spoken; detected if it is left out.", *LANGUAGE, option="language"),
    "initial_prompt": Field("Text before the recording.", *TEXT, option="initial_prompt"),
    "word_timestamps": Field("Add the times of words to json.", *FLAG, option="word_timestamps"),
    "diarize": Field("Tell speakers apart.", *FLAG),
    "min_speakers": Field("Fewest speakers.", *WHOLE),
    "max_speakers": Field("Most speakers.", *WHOLE),
    "output": Field("Format of the answer.", *choice(*OUTPUTS, strict=False)),
}


def _asked(form: Form) -> TranscriptionRequest:
    given = read_fields(form, FIELDS)
    return TranscriptionRequest(
        options=transcribe_options(given, field_names(FIELDS)),
        response_format=given["output"],
        words=given["word_timestamps"],
        diarized=given["diarize"],
        speakers=SpeakerOptions(min_speakers=given["min_speakers"], max_speakers=given["max_speakers"]),
        raw=not given["encode"],
        file_name=form.upload.client_name,
    )


def _respond(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    name = asked.response_format
    text = dump_json(_document(transcript, asked)) if name == "json" else "".join(render(transcript, name))
    text = _NO_HOURS(text) if name == "vtt" else text
    file_name = f"{quote(asked.file_name[:MAX_NAME_CHARS], safe='')}.{name}"
    headers = {"asr-engine": "harken", "content-disposition": f'attachment; filename="{file_name}"'}
    return Response(text, media_type=PLAIN_TEXT, headers=headers)


def _document(transcript: Transcript, asked: TranscriptionRequest) -> dict[str, Any]:
    segments = [_segment(segment, asked) for segment in transcript.segments]
    return {"language": transcript.language, "segments": segments, "text": transcript.text}


def _segment(segment: Segment, asked: TranscriptionRequest) -> dict[str, Any]:
    words = [*map(word_json, segment.words)] if asked.words else None
    return segment_json(segment) | {"words": words}


def _asked_for_language(form: Form) -> TranscriptionRequest:
    given = read_fields(form, RAW_FIELDS)
    return TranscriptionRequest(
        options=TranscribeOptions(), response_format="json", language_only=True, raw=not given["encode"]
    )


def _respond_with_language(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    return JSONResponse(
        {
            "detected_language": LANGUAGES[transcript.language],
            "language_code": transcript.language,
            "confidence": transcript.language_probability,
        }
    )


DIALECTS = (
    Dialect(
        path="/asr",
        summary="Transcribe a recording: whisper-asr-webservice's API.",
        fields=FIELDS,
        parse=_asked,
        respond=_respond,
        answers=(PLAIN_TEXT,),
        recording="audio_file",
        in_query=True,
        option_names=field_names(FIELDS),
    ),
    Dialect(
        path="/detect-language",
        summary="Find the language of the first 30 s of a recording: whisper-asr-webservice's API.",
        fields=RAW_FIELDS,
        parse=_asked_for_language,
        respond=_respond_with_language,
        answers=("application/json",),
        recording="audio_file",
        in_query=True,
    ),
)

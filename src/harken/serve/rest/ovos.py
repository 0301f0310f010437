"""The API of OVOS' and Neon's speech servers: a WAV file as the body, and text as the answer."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, PlainTextResponse, Response

from harken.results import Transcript
from harken.serve.rest.fields import LANGUAGE, Field, field_names, read_fields, transcribe_options
from harken.serve.rest.files import Dialect
from harken.serve.rest.forms import Form
from harken.serve.rest.transcription_form import TranscriptionRequest
from harken.text import from_language_tags

FIELDS: Mapping[str, Field] = {
    "lang": Field("Language spoken, such as en-us; auto detects it.", *LANGUAGE, option="language")
}
CANDIDATES: Mapping[str, Field] = {
    "valid_langs": Field(
        "The only candidates, with commas between them.",
        lambda form, name: from_language_tags(",".join(form.texts(name)).split(","), option=name),
        {"type": "string"},
        option="languages",
    )
}


def _asked(form: Form) -> TranscriptionRequest:
    options = transcribe_options(read_fields(form, FIELDS), field_names(FIELDS))
    return TranscriptionRequest(options=options, response_format="text")


def _respond(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    return PlainTextResponse(transcript.text)


def _asked_for_language(form: Form) -> TranscriptionRequest:
    options = transcribe_options(read_fields(form, CANDIDATES), field_names(CANDIDATES))
    return TranscriptionRequest(options=options, response_format="json", language_only=True)


def _respond_with_language(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    return JSONResponse({"lang": transcript.language, "conf": transcript.language_probability})


DIALECTS = (
    Dialect(
        path="/stt",
        summary="Transcribe a recording: OVOS' API.",
        fields=FIELDS,
        parse=_asked,
        respond=_respond,
        answers=("text/plain",),
        recording=None,
        in_query=True,
        option_names=field_names(FIELDS),
    ),
    Dialect(
        path="/lang_detect",
        summary="Find the language of the first 30 s of a recording: OVOS' API.",
        fields=CANDIDATES,
        parse=_asked_for_language,
        respond=_respond_with_language,
        answers=("application/json",),
        recording=None,
        in_query=True,
        option_names=field_names(CANDIDATES),
    ),
)

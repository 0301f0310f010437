"""The API of whisper.cpp's server: a form with a file, whose fields are the options of that program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from harken.formats import render
from harken.results import Segment, Transcript
from harken.serve.rest.fields import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Field,
    choice,
    field_names,
    read_fields,
    transcribe_options,
)
from harken.serve.rest.files import Dialect
from harken.serve.rest.forms import MEGABYTE, Form, bad_field, missing_field, received_form
from harken.serve.rest.render import MEDIA_TYPES
from harken.serve.rest.transcription_form import TranscriptionRequest
from harken.serve.rest.transcripts import segment_json, word_json
from harken.serve.service import Service
from harken.text import LANGUAGES, from_language_tag

MAX_LOAD_BYTES = MEGABYTE
MAX_TEMPERATURE, DEFAULT_STEP, MIN_STEP, TOLERANCE = 1.0, 0.2, 0.1, 1e-6
DEFAULT_LANGUAGE = "en"
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
NO_TIME = -1
"""Time of a word by a method that is not used here."""


def _language(form: Form, name: str) -> str | None:
    return from_language_tag(form.text(name) or DEFAULT_LANGUAGE, option=name)


def _count(form: Form, name: str) -> int | None:
    """Return a number; one below 1 stands for the default."""
    value = form.whole(name)
    return value if value and value > 0 else None


FIELDS: Mapping[str, Field] = {
    "language": Field(
        "Language spoken, or auto.", _language, TEXT[1] | {"default": DEFAULT_LANGUAGE}, option="language"
    ),
    "detect_language": Field("Detect the language, whatever is said of it.", *FLAG),
    "translate": Field("Translate into English.", *FLAG),
    "prompt": Field("Text before the recording.", *TEXT, option="initial_prompt"),
    "carry_initial_prompt": Field("Give it to every window.", *FLAG, option="carry_initial_prompt"),
    "response_format": Field("Format of the answer.", *choice(*FORMATS)),
    "temperature": Field("Temperature to try first.", *NUMBER),
    "temperature_inc": Field("Step to the next temperature; 0 tries no other.", *NUMBER),
    "beam_size": Field("Hypotheses of the beam search; -1 is greedy.", _count, WHOLE[1], option="beam_size"),
    "best_of": Field("Samples drawn at each temperature above 0.", _count, WHOLE[1], option="best_of"),
    "logprob_thold": Field("Lowest average log-probability.", *NUMBER, option="logprob_threshold"),
    "no_speech_thold": Field("Probability of silence.", *NUMBER, option="no_speech_threshold"),
    "offset_t": Field("Milliseconds to leave out at the beginning.", *WHOLE),
    "duration": Field("Milliseconds to transcribe.", *WHOLE),
    "diarize": Field("Tell speakers apart.", *FLAG),
}
OPTION_NAMES = field_names(FIELDS) | {"temperatures": "temperature", "clip_timestamps": "offset_t"}


def _asked(form: Form) -> TranscriptionRequest:
    given = read_fields(form, FIELDS)
    return TranscriptionRequest(
        options=transcribe_options(
            given | ({"language": None} if given["detect_language"] else {}),
            OPTION_NAMES,
            task="translate" if given["translate"] else "transcribe",
            temperatures=_temperatures(given["temperature"] or 0.0, given["temperature_inc"]),
            clip_timestamps=_clip(given["offset_t"] or 0, given["duration"] or 0),
            word_timestamps=given["response_format"] == "verbose_json",
        ),
        response_format=given["response_format"],
        diarized=given["diarize"],
    )


def _temperatures(first: float, step: float | None) -> tuple[float, ...]:
    """Return the fallback schedule."""
    if not 0 <= first <= MAX_TEMPERATURE:
        raise bad_field("temperature", f"{first:g}", f"a number from 0 to {MAX_TEMPERATURE:g}")
    step = DEFAULT_STEP if step is None else step
    n_steps = int((MAX_TEMPERATURE - first) / max(step, MIN_STEP) + TOLERANCE) if step > 0 else 0
    return tuple(round(first + i * max(step, MIN_STEP), 6) for i in range(n_steps + 1))


def _clip(offset_ms: int, duration_ms: int) -> tuple[float, ...]:
    """Return the clip to transcribe; none for all."""
    end = ((offset_ms + duration_ms) / 1000,) if duration_ms > 0 else ()
    return (offset_ms / 1000, *end) if offset_ms or end else ()


def _respond(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    name = asked.response_format
    if name in ("srt", "vtt"):
        return Response("".join(render(transcript, name)), media_type=MEDIA_TYPES[name])
    text = "".join(f" {segment.text.strip()}\n" for segment in transcript.segments)
    if name == "text":
        return Response(text, media_type="text/html")
    return JSONResponse({"text": text} | (_details(transcript) if name == "verbose_json" else {}))


def _details(transcript: Transcript) -> dict[str, Any]:
    language = LANGUAGES[transcript.language]
    probability = 1.0 if transcript.language_probability is None else transcript.language_probability
    names = [speaker.name for speaker in transcript.speakers or ()]
    return {
        "task": transcript.task,
        "language": language,
        "duration": transcript.duration_s,
        "segments": [_segment_json(segment, names) for segment in transcript.segments],
        "detected_language": language,
        "detected_language_probability": probability,
        "language_probabilities": {transcript.language: probability},
    }


def _segment_json(segment: Segment, names: Sequence[str]) -> dict[str, Any]:
    """Return a segment, with the number of its speaker if speakers were told apart."""
    number = str(names.index(segment.speakers[0])) if segment.speakers else "?"
    words = [word_json(word) | {"t_dtw": NO_TIME} for word in segment.words]
    return segment_json(segment) | {"words": words} | ({"speaker": number} if names else {})


class WhisperCpp:
    """The routes, and the model that one of them chooses for the other.

    Attributes
    ----------
    inference : Dialect
    """

    def __init__(self, service: Service) -> None:
        self._service, self._model = service, ""
        self.inference = Dialect(
            path="/inference",
            summary="Transcribe a recording: whisper.cpp's API.",
            fields=FIELDS,
            parse=lambda form: replace(_asked(form), model=self._model),
            respond=_respond,
            answers=("application/json", "text/html", *(MEDIA_TYPES[name] for name in ("srt", "vtt"))),
            option_names=OPTION_NAMES,
        )

    async def load(self, request: Request) -> Response:
        """Choose the model of /inference, by a name of this server: whisper.cpp's API."""
        async with received_form(request.scope, request.receive, MAX_LOAD_BYTES) as form:
            name = form.text("model")
        if not name:
            raise missing_field("model")
        self._model = (await self._service.models.get(name)).id
        return PlainTextResponse("Load was successful!")

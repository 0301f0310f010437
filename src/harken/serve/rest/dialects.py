"""Smaller APIs of files: of whisper-asr-webservice, of whisper.cpp's server, and of OVOS' and Neon's speech servers.

Some of their clients take any body for a transcript, whatever its status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from harken.formats import dump_json, render
from harken.results import Segment, Transcript, Word, cut
from harken.serve.live.audio import AudioFormat
from harken.serve.rest.files import Dialect
from harken.serve.rest.forms import (
    FLAG,
    LANGUAGE,
    MEGABYTE,
    NUMBER,
    TEXT,
    WHOLE,
    Field,
    Form,
    bad_field,
    choice,
    missing_field,
    read_fields,
    received_form,
    transcribe_options,
)
from harken.serve.rest.transcription_form import TranscriptionRequest
from harken.serve.rest.transcripts import MEDIA_TYPES, segment_json, word_json
from harken.serve.service import Service
from harken.speakers.diarizer import SpeakerOptions
from harken.text import LANGUAGES, from_language_tag, from_language_tags
from harken.transcribe import TranscribeOptions
from harken.transcribe.options import TASKS

# --- whisper-asr-webservice, for Bazarr, Obsidian and keyboards: a file in a form, and all else in the query ---

OUTPUTS = ("txt", "vtt", "srt", "tsv", "json")
PLAIN_TEXT = "text/plain"
MAX_NAME_CHARS = 200
_NO_HOURS = partial(re.compile(r"^(?:00:)?(\S+) --> (?:00:)?(?=\d\d:\d\d\.)", re.MULTILINE).sub, r"\1 --> ")
"""Leaves out hours that are 0 in vtt, as these clients know it."""

ASR_RAW = {
    "encode": Field(
        "The file is a recording; false: it is s16le, 16 kHz, mono, without a header.",
        lambda form, name: form.text(name) is None or form.flag(name),
        {"type": "boolean", "default": True},
    )
}
ASR_FIELDS: Mapping[str, Field] = ASR_RAW | {
    "task": Field("translate is into English.", *choice(*TASKS, strict=False), option="task"),
    "language": Field("Language spoken; detected if it is left out.", *LANGUAGE, option="language"),
    "initial_prompt": Field("Text before the recording.", *TEXT, option="initial_prompt"),
    "word_timestamps": Field("Add the times of words to json.", *FLAG, option="word_timestamps"),
    "diarize": Field("Tell speakers apart.", *FLAG),
    "min_speakers": Field("Fewest speakers.", *WHOLE),
    "max_speakers": Field("Most speakers.", *WHOLE),
    "output": Field("Format of the answer.", *choice(*OUTPUTS, strict=False)),
}


def _asr_request(form: Form) -> TranscriptionRequest:
    given = read_fields(form, ASR_FIELDS)
    return TranscriptionRequest(
        options=transcribe_options(given, ASR_FIELDS),
        response_format=given["output"],
        words=given["word_timestamps"],
        diarized=given["diarize"],
        speakers=SpeakerOptions(min_speakers=given["min_speakers"], max_speakers=given["max_speakers"]),
        raw=None if given["encode"] else AudioFormat(),
        file_name=form.upload.client_name,
    )


def _asr_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    name = asked.response_format
    text = dump_json(_document(transcript, asked)) if name == "json" else "".join(render(transcript, name))
    text = _NO_HOURS(text) if name == "vtt" else text
    file_name = f"{quote(asked.file_name[:MAX_NAME_CHARS], safe='')}.{name}"
    headers = {"asr-engine": "harken", "content-disposition": f'attachment; filename="{file_name}"'}
    return Response(text, media_type=PLAIN_TEXT, headers=headers)


def _document(transcript: Transcript, asked: TranscriptionRequest) -> dict[str, Any]:
    segments = [
        segment_json(segment) | {"words": [*map(word_json, segment.words)] if asked.words else None}
        for segment in transcript.segments
    ]
    return {"language": transcript.language, "segments": segments, "text": transcript.text}


def _asr_language_request(form: Form) -> TranscriptionRequest:
    raw = None if read_fields(form, ASR_RAW)["encode"] else AudioFormat()
    return TranscriptionRequest(options=TranscribeOptions(), language_only=True, raw=raw)


def _asr_language_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    language = {"detected_language": LANGUAGES[transcript.language], "language_code": transcript.language}
    return JSONResponse(language | {"confidence": transcript.language_probability})


# --- OVOS' and Neon's speech servers: a WAV file as the body, and text as the answer ---

OVOS_FIELDS: Mapping[str, Field] = {
    "lang": Field("Language spoken, such as en-us; auto detects it.", *LANGUAGE, option="language")
}
OVOS_CANDIDATES: Mapping[str, Field] = {
    "valid_langs": Field(
        "The only candidates, with commas between them.",
        lambda form, name: from_language_tags(",".join(form.texts(name)).split(","), option=name),
        {"type": "string"},
        option="languages",
    )
}


def _ovos_request(form: Form) -> TranscriptionRequest:
    return TranscriptionRequest(options=transcribe_options(read_fields(form, OVOS_FIELDS), OVOS_FIELDS))


def _ovos_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    return PlainTextResponse(transcript.text)


def _ovos_language_request(form: Form) -> TranscriptionRequest:
    options = transcribe_options(read_fields(form, OVOS_CANDIDATES), OVOS_CANDIDATES)
    return TranscriptionRequest(options=options, language_only=True)


def _ovos_language_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    return JSONResponse({"lang": transcript.language, "conf": transcript.language_probability})


DIALECTS = (
    Dialect(
        path="/asr",
        summary="Transcribe a recording: whisper-asr-webservice's API.",
        fields=ASR_FIELDS,
        parse=_asr_request,
        respond=_asr_response,
        answers=(PLAIN_TEXT,),
        recording="audio_file",
        in_query=True,
    ),
    Dialect(
        path="/detect-language",
        summary="Find the language of the first 30 s of a recording: whisper-asr-webservice's API.",
        fields=ASR_RAW,
        parse=_asr_language_request,
        respond=_asr_language_response,
        answers=("application/json",),
        recording="audio_file",
        in_query=True,
    ),
    Dialect(
        path="/stt",
        summary="Transcribe a recording: OVOS' API.",
        fields=OVOS_FIELDS,
        parse=_ovos_request,
        respond=_ovos_response,
        answers=(PLAIN_TEXT,),
        recording=None,
        in_query=True,
    ),
    Dialect(
        path="/lang_detect",
        summary="Find the language of the first 30 s of a recording: OVOS' API.",
        fields=OVOS_CANDIDATES,
        parse=_ovos_language_request,
        respond=_ovos_language_response,
        answers=("application/json",),
        recording=None,
        in_query=True,
    ),
)


# --- whisper.cpp's server: a form with a file, whose fields are the options of that program ---

MAX_LOAD_BYTES = MEGABYTE
MAX_TEMPERATURE, DEFAULT_STEP, MIN_STEP, TOLERANCE = 1.0, 0.2, 0.1, 1e-6
DEFAULT_LANGUAGE = "en"
CPP_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
NO_TIME = -1
"""Time of a word by a method that is not used here."""


def _language(form: Form, name: str) -> str | None:
    return from_language_tag(form.text(name) or DEFAULT_LANGUAGE, option=name)


def _count(form: Form, name: str) -> int | None:
    """Return a number; one below 1 stands for the default."""
    value = form.whole(name)
    return value if value and value > 0 else None


CPP_FIELDS: Mapping[str, Field] = {
    "language": Field(
        "Language spoken, or auto.", _language, TEXT[1] | {"default": DEFAULT_LANGUAGE}, option="language"
    ),
    "detect_language": Field("Detect the language, whatever is said of it.", *FLAG),
    "translate": Field("Translate into English.", *FLAG),
    "prompt": Field("Text before the recording.", *TEXT, option="initial_prompt"),
    "carry_initial_prompt": Field("Give it to every window.", *FLAG, option="carry_initial_prompt"),
    "response_format": Field("Format of the answer.", *choice(*CPP_FORMATS)),
    "temperature": Field("Temperature to try first.", *NUMBER),
    "temperature_inc": Field("Step to the next temperature; 0 tries no other.", *NUMBER),
    "beam_size": Field("Hypotheses of the beam search; 1 is greedy.", _count, WHOLE[1], option="beam_size"),
    "best_of": Field("Samples drawn at each temperature above 0.", _count, WHOLE[1], option="best_of"),
    "logprob_thold": Field("Lowest average log-probability.", *NUMBER, option="logprob_threshold"),
    "no_speech_thold": Field("Probability of silence.", *NUMBER, option="no_speech_threshold"),
    "offset_t": Field("Milliseconds to leave out at the beginning.", _count, WHOLE[1]),
    "duration": Field("Milliseconds to transcribe.", _count, WHOLE[1]),
    "diarize": Field("Tell speakers apart.", *FLAG),
    "max_len": Field(
        "Most characters of a segment, which is cut between words; 0 sets no limit.", _count, WHOLE[1]
    ),
}


def _cpp_request(form: Form) -> TranscriptionRequest:
    given = read_fields(form, CPP_FIELDS)
    return TranscriptionRequest(
        options=transcribe_options(
            given | ({"language": None} if given["detect_language"] else {}),
            CPP_FIELDS,
            task="translate" if given["translate"] else "transcribe",
            temperatures=_temperatures(given["temperature"] or 0.0, given["temperature_inc"]),
            clip_timestamps=_clip(given["offset_t"] or 0, given["duration"] or 0),
            word_timestamps=given["response_format"] == "verbose_json" or given["max_len"] is not None,
        ),
        response_format=given["response_format"],
        diarized=given["diarize"],
        max_segment_chars=given["max_len"],
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
    end = ((offset_ms + duration_ms) / 1000,) if duration_ms else ()
    return (offset_ms / 1000, *end) if offset_ms or end else ()


def _cpp_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    name = asked.response_format
    if asked.max_segment_chars:
        transcript = _cut(transcript, asked.max_segment_chars)
    if name in ("srt", "vtt"):
        return Response("".join(render(transcript, name)), media_type=MEDIA_TYPES[name])
    text = "".join(f" {segment.text.strip()}\n" for segment in transcript.segments)
    if name == "text":
        return Response(text, media_type="text/html")
    return JSONResponse({"text": text} | (_details(transcript) if name == "verbose_json" else {}))


def _cut(transcript: Transcript, max_chars: int) -> Transcript:
    """Return a transcript whose segments are cut between words; only a single word may have more characters."""
    parts: list[Segment] = []
    for segment in transcript.segments:
        runs: list[list[Word]] = []
        for word in segment.words:
            if runs and len("".join(each.text for each in (*runs[-1], word)).strip()) <= max_chars:
                runs[-1].append(word)
            else:
                runs.append([word])
        parts += cut(segment, runs, lambda text: ())  # which tokens belong to a word is not known
    return replace(transcript, segments=tuple(replace(part, index=index) for index, part in enumerate(parts)))


def _details(transcript: Transcript) -> dict[str, Any]:
    language = LANGUAGES[transcript.language]
    probability = 1.0 if transcript.language_probability is None else transcript.language_probability
    names = [speaker.name for speaker in transcript.speakers or ()]
    return {
        "task": transcript.task,
        "language": language,
        "duration": transcript.duration_s,
        "segments": [_cpp_segment(segment, names) for segment in transcript.segments],
        "detected_language": language,
        "detected_language_probability": probability,
        "language_probabilities": {transcript.language: probability},
    }


def _cpp_segment(segment: Segment, names: Sequence[str]) -> dict[str, Any]:
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
            fields=CPP_FIELDS,
            parse=lambda form: replace(_cpp_request(form), model=self._model),
            respond=_cpp_response,
            answers=("application/json", "text/html", *(MEDIA_TYPES[name] for name in ("srt", "vtt"))),
            more_names={"temperatures": "temperature", "clip_timestamps": "offset_t"},
        )

    async def load(self, request: Request) -> Response:
        """Choose the model of /inference, by a name of this server: whisper.cpp's API."""
        async with received_form(request.scope, request.receive, MAX_LOAD_BYTES) as form:
            name = form.text("model")
        if not name:
            raise missing_field("model")
        self._model = (await self._service.models.get(name)).id
        return PlainTextResponse("Load was successful!")

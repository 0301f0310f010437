"""Deepgram's API: a recording as the body, all else in the query; the same of live streams, see `live/deepgram.py`.

Texts have the punctuation and capitals of the model, whether `punctuate` asks for them or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_DNS, uuid4, uuid5

from starlette.responses import JSONResponse, Response

from harken.decoding.logit_rules import fitting_hotwords
from harken.results import Segment, Transcript, Word
from harken.serve.errors import RequestError
from harken.serve.live.audio import CONTAINER, AudioFormat
from harken.serve.rest.files import Dialect
from harken.serve.rest.forms import (
    FLAG,
    FLAGS,
    LANGUAGE,
    TEXT,
    TEXTS,
    WHOLE,
    Field,
    Form,
    bad_field,
    missing_field,
    read_fields,
    transcribe_options,
)
from harken.serve.rest.transcription_form import TranscriptionRequest
from harken.serve.rest.transcripts import words_of
from harken.text import from_language_tags
from harken.transcribe import TranscribeOptions
from harken.version import __version__

ENCODINGS = MappingProxyType({"linear16": "s16le", "mulaw": "mulaw", "alaw": "alaw"})
"""Formats of raw samples, by their names in the protocol."""
CONTAINERS = ("flac", "ogg-opus", "webm", "wav", "mp3", "containerized")
DEEPGRAM_MODEL = re.compile(
    r"(2-)?(base-|conversationalai|enhanced|finance|flux|general|meeting|nova|phonecall|video|voicemail|whisper(-|$)).*"
)
"""The names of Deepgram's own models, all of which mean the server's first; but `base`, which is Whisper's too."""
MULTILINGUAL = "multi"
PARAGRAPH_PAUSE_S = 2.0
_CONTAINER_HEAD = re.compile(
    rb"RIFF|RF64|FORM|caff|fLaC|OggS|ID3|\x1aE\xdf\xa3|....ftyp|\xff[\xf1-\xf3\xf9-\xfb]", re.DOTALL
)
"""The first bytes of recordings that say what they are; the last are those of frames of mp3 and AAC."""
_JSON_HEAD = re.compile(rb'\s*\{\s*"')
"""The first bytes of an object; samples may begin with a brace too, but not go on so."""
_WEIGHT = re.compile(r":-?[\d.]+$")
OPTION_FIELDS = {
    "language": Field(
        "Language spoken, such as en-US; multi or nothing detects it.", *LANGUAGE, option="language"
    ),
    "detect_language": Field(
        "Detect the language; codes are the only candidates.",
        lambda form, name: from_language_tags(
            {each.lower() for each in form.texts(name)} - FLAGS.keys(), option=name
        ),
        {"type": "string"},
        option="languages",
    ),
    "keyterm": Field(
        "Words and names to expect; keywords are the same, with weights.",
        lambda form, name: fitting_hotwords(
            (*form.texts(name), *(_WEIGHT.sub("", word) for word in form.texts("keywords")))
        ),
        TEXTS[1],
        option="hotwords",
    ),
}
FIELDS: Mapping[str, Field] = OPTION_FIELDS | {
    "model": Field("A model of this server; a name of Deepgram's own is the first.", *TEXT),
    "diarize": Field("Tell speakers apart.", *FLAG),
    "utterances": Field("Add the segments.", *FLAG),
    "paragraphs": Field("Add paragraphs; so does smart_format.", *FLAG),
    "smart_format": Field("Add paragraphs.", *FLAG),
    "encoding": Field("Of samples without a header: linear16, mulaw or alaw, with their sample_rate.", *TEXT),
    "sample_rate": Field("Samples a second.", *WHOLE),
    "channels": Field("1 or 2 interleaved channels of samples without a header.", *WHOLE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenRequest(TranscriptionRequest):
    """A client's request; what it wants in the answer beside the text."""

    utterances: bool
    paragraphs: bool
    multilingual: bool


def model_name(form: Form) -> str:
    """Return the model that is asked for; empty for the server's first."""
    name = form.text("model") or ""
    return "" if DEEPGRAM_MODEL.fullmatch(name) else name


def listen_options(form: Form) -> TranscribeOptions:
    """Return the options of a transcription.

    Raises
    ------
    RequestError, OptionError
        If a value is not allowed.
    """
    if address := form.text("callback"):
        raise bad_field("callback", address, "none, as this server sends nothing to other addresses")
    return transcribe_options(read_fields(form, OPTION_FIELDS), OPTION_FIELDS, word_timestamps=True)


def audio_format(form: Form) -> AudioFormat:
    """Return the format of raw samples, or that of any container.

    Raises
    ------
    RequestError, OptionError
        If a parameter is missing, or its value not allowed.
    """
    encoding = form.text("encoding")
    if encoding is None or encoding in CONTAINERS:
        return AudioFormat(format=CONTAINER)
    if encoding not in ENCODINGS:
        raise bad_field(
            "encoding", encoding, f"{', '.join((*ENCODINGS, *CONTAINERS))}, or none for any container"
        )
    if (rate := form.whole("sample_rate")) is None:
        raise missing_field("sample_rate", "that of raw audio")
    channels = form.whole("channels")
    return AudioFormat(format=ENCODINGS[encoding], rate=rate, channels=1 if channels is None else channels)


def alternative_json(
    text: str, words: Iterable[Word], numbers: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return a text with its words.

    Parameters
    ----------
    text : str
    words : iterable of Word
    numbers : mapping, optional
        Numbers of the speakers by their names.
    """
    shown = [_word_json(word, numbers or {}) for word in words]
    confidence = sum(word["confidence"] for word in shown) / max(1, len(shown))
    return {"transcript": text.strip(), "confidence": round(confidence, 6), "words": shown}


def languages_json(segments: Iterable[Segment]) -> dict[str, list[str]]:
    """Return the languages of segments, in the order of their first one; no key for none, as clients take the first."""
    languages = [*dict.fromkeys(segment.language for segment in segments if segment.language)]
    return {"languages": languages} if languages else {}


def metadata_json(request_id: str, duration_s: float) -> dict[str, Any]:
    """Return what is told about a request at its end."""
    return {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "sha256": "",
        "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": round(duration_s, 3),
        "channels": 1,
    }


def model_uuid(model: str) -> str:
    """Return the number of a model."""
    return str(uuid5(NAMESPACE_DNS, model))


def model_info(model: str) -> dict[str, str]:
    """Return what is told about a model."""
    return {"name": model, "version": __version__, "arch": "whisper"}


def refuse(problem: RequestError) -> Response:
    """Return the response with an error."""
    body = {"err_code": problem.code or problem.type, "err_msg": str(problem), "request_id": str(uuid4())}
    return JSONResponse(body, problem.status, problem.headers())


def _asked(form: Form) -> ListenRequest:
    given = read_fields(form, FIELDS)
    form.upload.seek(0)
    if _JSON_HEAD.match(form.upload.read(12)):
        raise RequestError(
            "the body is JSON; allowed is the recording itself, as this server fetches no address",
            code="Bad Request",
        )
    return ListenRequest(
        options=listen_options(form),
        model=model_name(form),
        diarized=given["diarize"],
        utterances=given["utterances"],
        paragraphs=given["paragraphs"] or given["smart_format"],
        raw=_raw_audio(form),
        multilingual=form.text("language") == MULTILINGUAL,
    )


def _raw_audio(form: Form) -> AudioFormat | None:
    """Return the format of samples without a header; None if the recording says what it is."""
    form.upload.seek(0)
    has_head = _CONTAINER_HEAD.match(form.upload.read(12))
    if has_head and (form.text("encoding") not in ENCODINGS or form.text("sample_rate") is None):
        return None  # clients name the codec of files too
    audio = audio_format(form)
    return None if audio.format == CONTAINER else audio


def _respond(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    assert isinstance(asked, ListenRequest)
    segments = transcript.segments
    numbers = {speaker.name: number for number, speaker in enumerate(transcript.speakers or ())}
    alternative = alternative_json(transcript.text, words_of(segments), numbers)
    if asked.multilingual:
        alternative |= languages_json(segments)
    if asked.paragraphs:
        paragraphs = [_paragraph_json(each, numbers) for each in _paragraphs(segments)]
        text = "\n\n".join(map(_paragraph_text, paragraphs))
        alternative["paragraphs"] = {"transcript": text, "paragraphs": paragraphs}
    detected = {} if asked.options.language else {"detected_language": transcript.language}
    results: dict[str, Any] = {"channels": [detected | {"alternatives": [alternative]}]}
    if asked.utterances:
        results["utterances"] = [_utterance_json(segment, numbers) for segment in segments]
    uuid = model_uuid(asked.model)
    metadata = metadata_json(str(uuid4()), transcript.duration_s)
    metadata |= {"models": [uuid], "model_info": {uuid: model_info(asked.model)}}
    return JSONResponse({"metadata": metadata, "results": results})


def _word_json(word: Word, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return a word: bare, and as it is written."""
    written = word.text.strip()
    return {
        "word": re.sub(r"^\W+|\W+$", "", written).lower() or written,
        "start": round(word.start_s, 3),
        "end": round(word.end_s, 3),
        "confidence": round(word.probability, 6),
        "punctuated_word": written,
        **_speaker_json(word, numbers),
    }


def _speaker_json(said: Word | Segment, numbers: Mapping[str, int]) -> dict[str, int]:
    return {"speaker": numbers[said.speakers[0]]} if said.speakers and numbers else {}


def _utterance_json(segment: Segment, numbers: Mapping[str, int]) -> dict[str, Any]:
    times = {"start": round(segment.start_s, 3), "end": round(segment.end_s, 3), "channel": 0}
    said = alternative_json(segment.text, segment.words, numbers)
    return times | said | {"id": str(uuid4())} | _speaker_json(segment, numbers)


def _paragraphs(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield the segments of each paragraph: of one speaker, and without a long pause."""
    paragraph: list[Segment] = []
    for segment in segments:
        last = paragraph[-1] if paragraph else segment
        if last.speakers != segment.speakers or segment.start_s - last.end_s >= PARAGRAPH_PAUSE_S:
            yield paragraph
            paragraph = []
        paragraph.append(segment)
    if paragraph:
        yield paragraph


def _paragraph_text(paragraph: Mapping[str, Any]) -> str:
    """Return the text of a paragraph, behind its speaker if there is one."""
    label = f"Speaker {paragraph['speaker']}: " if "speaker" in paragraph else ""
    return label + " ".join(sentence["text"] for sentence in paragraph["sentences"])


def _paragraph_json(segments: Sequence[Segment], numbers: Mapping[str, int]) -> dict[str, Any]:
    sentences = [
        {"text": each.text.strip(), "start": round(each.start_s, 3), "end": round(each.end_s, 3)}
        for each in segments
    ]
    n_words = sum(len(segment.words) for segment in segments)
    return {
        "sentences": sentences,
        "num_words": n_words,
        "start": sentences[0]["start"],
        "end": sentences[-1]["end"],
        **_speaker_json(segments[0], numbers),
    }


DIALECT = Dialect(
    path="/v1/listen",
    summary="Transcribe a recording: Deepgram's API.",
    fields=FIELDS,
    parse=_asked,
    respond=_respond,
    answers=("application/json",),
    recording=None,
    in_query=True,
    more_names={"rate": "sample_rate"},
    refuse=refuse,
)

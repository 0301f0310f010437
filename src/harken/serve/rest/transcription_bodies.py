"""Transcripts in the response formats of OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from harken.formats import as_json, main_speaker, render
from harken.results import Segment, Transcript, Word
from harken.serve.rest.transcription_form import DIARIZED, TranscriptionRequest
from harken.text import LANGUAGES
from harken.types import FRAMES_PER_SECOND, TIMESTAMP_STEP_S

_ResponseFactory = Callable[[Transcript, TranscriptionRequest], Response]

SEGMENT_KEYS = (
    *("id", "start", "end", "text", "tokens"),
    *("temperature", "avg_logprob", "compression_ratio", "no_speech_prob"),
)
MIN_PROBABILITY = 1e-9
"""Probability that stands for 0, so that its logarithm is finite."""


def transcription_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    """Return the response with a whole transcript."""
    return _RESPONSES[asked.response_format](transcript, asked)


def _text_response(media_type: str, format_text: Callable[[Transcript], Iterable[str]]) -> _ResponseFactory:
    return lambda transcript, asked: Response("".join(format_text(transcript)), media_type=media_type)


def _json_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    body = {
        "text": transcript.text,
        "languages": languages_json(transcript),
        "usage": _duration_json(transcript),
    }
    if asked.logprobs:
        body["logprobs"] = logprobs_json(words_of(transcript.segments))
    return JSONResponse(body)


def _verbose_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    translated = transcript.task == "translate"
    body: dict[str, Any] = {
        "task": transcript.task,
        "language": "english" if translated else LANGUAGES.get(transcript.language, transcript.language),
        "duration": transcript.duration_s,
        "text": transcript.text,
    }
    if asked.segments:
        body["segments"] = [_segment_json(segment) for segment in transcript.segments]
    if asked.words:
        body["words"] = [*map(_word_json, words_of(transcript.segments))]
    return JSONResponse(body | {"usage": _duration_json(transcript)})


def _diarized_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    body = {
        "task": transcript.task,
        "duration": transcript.duration_s,
        "text": transcript.text,
        "segments": [speaker_segment_json(segment) for segment in transcript.segments],
        "usage": _duration_json(transcript),
    }
    return JSONResponse(body)


_RESPONSES: Mapping[str, _ResponseFactory] = {
    "json": _json_response,
    "verbose_json": _verbose_response,
    DIARIZED: _diarized_response,
    "text": _text_response("text/plain", lambda transcript: (transcript.text, "\n")),
    "srt": _text_response("application/x-subrip; charset=utf-8", lambda transcript: render(transcript, "srt")),
    "vtt": _text_response("text/vtt", lambda transcript: render(transcript, "vtt")),
}


def transcript_json(transcript: Transcript, model: str) -> dict[str, Any]:
    """Return the document of harken's json format, with a name of the model that clients know."""
    document: dict[str, Any] = as_json(transcript)
    return document | {"model": model, "text": transcript.text}


def segment_id(segment: Segment) -> str:
    """Return the name of a segment in a response."""
    return f"seg_{segment.index}"


def speaker_segment_json(segment: Segment) -> dict[str, Any]:
    """Return a segment with its main speaker, which is empty if nobody is known."""
    return {
        "type": "transcript.text.segment",
        "id": segment_id(segment),
        "start": segment.start_s,
        "end": segment.end_s,
        "speaker": main_speaker(segment.speakers),
        "text": segment.text.strip(),
    }


def languages_json(transcript: Transcript) -> list[dict[str, str]]:
    """Return the languages of the segments, in the order of their first one."""
    codes = dict.fromkeys(segment.language or transcript.language for segment in transcript.segments)
    return [{"code": code} for code in codes]


def logprobs_json(words: Iterable[Word]) -> list[dict[str, Any]]:
    """Return the words with the logarithms of their probabilities, in the place of tokens."""
    return [
        {
            "token": word.text,
            "bytes": [*word.text.encode()],
            "logprob": math.log(max(word.probability, MIN_PROBABILITY)),
        }
        for word in words
    ]


def words_of(segments: Iterable[Segment]) -> Iterator[Word]:
    """Yield the words of segments."""
    for segment in segments:
        yield from segment.words


def tokens_json(transcript: Transcript) -> dict[str, Any]:
    """Return the usage in tokens, timestamps included; a token of audio is a position of the encoder output."""
    n_audio = math.ceil(transcript.duration_s / TIMESTAMP_STEP_S)
    n_text = sum(len(segment.tokens) for segment in transcript.segments)
    return {
        "type": "tokens",
        "input_tokens": n_audio,
        "input_token_details": {"audio_tokens": n_audio, "text_tokens": 0},
        "output_tokens": n_text,
        "total_tokens": n_audio + n_text,
    }


def _duration_json(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": transcript.duration_s}


def _segment_json(segment: Segment) -> dict[str, Any]:
    fields = as_json(segment)
    return {
        **{key: fields[key] for key in SEGMENT_KEYS},
        "seek": round(segment.seek_s * FRAMES_PER_SECOND),
        "hallucination_score": fields["hallucination_score"],
    }


def _word_json(word: Word) -> dict[str, Any]:
    fields: dict[str, Any] = as_json(word)
    return fields | {"word": word.text.strip()}

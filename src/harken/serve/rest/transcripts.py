"""Transcripts in the response formats of OpenAI's API: whole, or as server-sent events while they are made.

Of the events some are OpenAI's, and some harken's own, for who asks for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response

from harken.formats import as_json, dump_json, main_speaker, render
from harken.results import Segment, Transcript, Word
from harken.serve.rest.transcription_form import DIARIZED, TranscriptionRequest
from harken.serve.work.jobs import FileUpdate
from harken.text import LANGUAGES
from harken.types import FRAMES_PER_SECOND, TIMESTAMP_STEP_S

T = TypeVar("T")
Event = Mapping[str, Any]
HEARTBEAT_S = 15.0
"""Seconds of silence after which a proxy might close the connection."""
HEARTBEAT = b": \n\n"
"""A comment, which clients skip."""
END = b"data: [DONE]\n\n"
NAMED = "transcript."
"""Beginning of the types of OpenAI's events, whose names its libraries know; they pass over other named events."""
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies of the nginx kind pass each event on at once
}
MEDIA_TYPES: Mapping[str, str] = {
    "txt": "text/plain",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt",
    "ass": "text/x-ssa",
    "lrc": "text/plain",
    "tsv": "text/tab-separated-values",
    "words.tsv": "text/tab-separated-values",
    "json": "application/json",
    "html": "text/html",
    "rttm": "text/plain",
}

SEGMENT_KEYS = (
    *("id", "start", "end", "text", "tokens"),
    *("temperature", "avg_logprob", "compression_ratio", "no_speech_prob"),
)
MIN_PROBABILITY = 1e-9
"""Probability that stands for 0, so that its logarithm is finite."""


def transcription_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    """Return the response with a whole transcript."""
    return _RESPONSES[asked.response_format](transcript, asked)


def _text_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    named = transcript.speakers is not None
    text = "".join(render(transcript, "txt", asked.layout)) if named else f"{transcript.text}\n"
    return Response(text, media_type="text/plain")


def _subtitles_response(transcript: Transcript, asked: TranscriptionRequest) -> Response:
    name = asked.response_format
    return Response("".join(render(transcript, name, asked.layout)), media_type=MEDIA_TYPES[name])


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
        body["segments"] = [segment_json(segment) for segment in transcript.segments]
    if asked.words:
        body["words"] = [as_json(word) | {"word": word.text.strip()} for word in words_of(transcript.segments)]
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


_RESPONSES: Mapping[str, Callable[[Transcript, TranscriptionRequest], Response]] = {
    "json": _json_response,
    "verbose_json": _verbose_response,
    DIARIZED: _diarized_response,
    "text": _text_response,
    "srt": _subtitles_response,
    "vtt": _subtitles_response,
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


def segment_json(segment: Segment) -> dict[str, Any]:
    """Return a segment with the numbers of its window."""
    fields = as_json(segment)
    return {
        **{key: fields[key] for key in (*SEGMENT_KEYS, "speaker") if key in fields},
        "seek": round(segment.seek_s * FRAMES_PER_SECOND),
        "hallucination_score": fields["hallucination_score"],
    }


def _cue_json(segment: Segment) -> dict[str, Any]:
    """Return a segment as far as subtitles need it."""
    return {"id": segment.index, "start": segment.start_s, "end": segment.end_s, "text": segment.text}


def word_json(word: Word) -> dict[str, Any]:
    """Return a word with the space before it, as programs other than OpenAI's service do."""
    return {"word": word.text, "start": word.start_s, "end": word.end_s, "probability": word.probability}


class TranscriptionEvents:
    """The events of one transcription, in order; the deltas together are the text.

    Parameters
    ----------
    asked : TranscriptionRequest
    duration_s : float or None
        Length of the recording, if its header tells.
    """

    def __init__(self, asked: TranscriptionRequest, duration_s: float | None) -> None:
        self._asked, self._duration_s = asked, duration_s
        self._held_back = ""  # spaces, which belong to the text only if more of it follows
        self._begun = False

    def update(self, update: FileUpdate) -> Iterator[Event]:
        """Yield the events of a step."""
        for segment in update.segments:
            yield from self._delta(segment)
            if self._asked.diarized:
                yield speaker_segment_json(segment)
            if self._asked.events:
                yield {"type": "harken.segment", "segment": as_json(segment)}
        if self._asked.events:
            yield {"type": "harken.progress", "done_s": update.done_s, "duration_s": self._duration_s}

    def done(self, transcript: Transcript) -> Iterator[Event]:
        """Yield the events at the end."""
        if self._asked.events:
            yield {"type": "harken.transcript", "transcript": transcript_json(transcript, self._asked.model)}
        yield {
            "type": "transcript.text.done",
            "text": transcript.text,
            "languages": languages_json(transcript),
            "segments": [*map(_cue_json, transcript.segments)],
            **self._logprobs(transcript.segments),
            "usage": tokens_json(transcript),
        }

    def _delta(self, segment: Segment) -> Iterator[Event]:
        text = self._held_back + segment.text
        text = text if self._begun else text.lstrip()
        delta = text.rstrip()
        self._held_back = text[len(delta) :]
        if delta:
            self._begun = True
            of_segment = {"segment_id": segment_id(segment)} if self._asked.diarized else {}
            yield {"type": "transcript.text.delta", "delta": delta, **of_segment, **self._logprobs([segment])}

    def _logprobs(self, segments: Sequence[Segment]) -> dict[str, Any]:
        return {"logprobs": logprobs_json(words_of(segments))} if self._asked.logprobs else {}


def encoded(event: Event) -> bytes:
    """Return an event as it is sent."""
    kind = event.get("type", "")
    name = f"event: {kind}\n" if kind.startswith(NAMED) else ""
    return f"{name}data: {dump_json(event)}\n\n".encode()


async def with_pauses(results: AsyncIterable[T], pause_s: float) -> AsyncGenerator[T | None, None]:
    """Yield results as they come, and None whenever none has come for some seconds."""
    iterator = aiter(results)
    following: asyncio.Future[T] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(iterator))
            if not (await asyncio.wait({following}, timeout=pause_s))[0]:
                yield None
                continue
            try:
                result = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield result
    finally:
        if following:
            following.cancel()

"""Events of a transcription in progress: those of OpenAI's API, and harken's own for clients that ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harken.formats import as_json
from harken.results import Segment, Transcript
from harken.serve.rest.transcription_bodies import (
    languages_json,
    logprobs_json,
    segment_id,
    speaker_segment_json,
    tokens_json,
    transcript_json,
)
from harken.serve.rest.transcription_form import TranscriptionRequest
from harken.serve.work.file_job import FileUpdate

Event = dict[str, Any]


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

    def _logprobs(self, segments: Sequence[Segment]) -> Event:
        return {"logprobs": logprobs_json(segments)} if self._asked.logprobs else {}

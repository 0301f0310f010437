"""Speakers in OpenAI's REST API, as OpenAI's own client asks for them, and of live streams; they take turns."""

import asyncio
from base64 import b64encode

import numpy as np
import openai
import pytest
from leaping import leap, leaping
from openai.types.audio import (
    TranscriptionDiarized,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionTextSegmentEvent,
)
from served_audio import wav
from talking import TalkingRecognizer, TurnsDiarizer
from tone_server import check_refused, events_of, post

from fakes.live_sessions import words_said
from harken.errors import CheckpointNotFound, OutputError
from harken.serve.errors import RequestError
from harken.serve.options import ServeOptions
from harken.serve.service import Service
from harken.types import SAMPLE_RATE
from serving import serving

RECORDING = wav(np.zeros(12 * SAMPLE_RATE, np.float32))  # 24 segments
SAMPLE = np.full(4 * SAMPLE_RATE, 0.1, np.float32)
"""A voice."""


class Loader:
    """Loads the diarizer, unless it is told to fail."""

    problem, n_loads = None, 0

    def __call__(self):
        self.n_loads += 1
        if self.problem:
            raise self.problem
        return TurnsDiarizer()


@pytest.fixture(scope="module")
def loader():
    return Loader()


@pytest.fixture(scope="module")
def server(loader):
    with serving(lambda id: TalkingRecognizer(), ["tones"], load_diarizer=loader) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with server.client() as client:
        yield client


def data_url(samples):
    return f"data:audio/wav;base64,{b64encode(wav(samples)).decode()}"


WAVE = data_url(SAMPLE)
DIARIZED = {"response_format": "diarized_json", "chunking_strategy": "auto", "language": "en"}


def ask(client, **fields):
    """Have the speech transcribed with its speakers."""
    given = DIARIZED | {"model": "gpt-4o-transcribe-diarize", "file": RECORDING} | fields
    return client.audio.transcriptions.create(**given)


def test_segments_name_their_speakers(client, loader):
    answer = ask(client)
    assert isinstance(answer, TranscriptionDiarized)
    assert (answer.task, answer.duration) == ("transcribe", 12.0)
    assert answer.to_dict()["usage"] == {"type": "duration", "seconds": 12.0}
    assert answer.text == words_said(120)
    assert [segment.speaker for segment in answer.segments] == ["A", "B"] * 12
    assert [segment.id for segment in answer.segments] == [f"seg_{i}" for i in range(24)]
    assert " ".join(segment.text for segment in answer.segments).split() == answer.text.split()
    TranscriptionDiarized.model_validate(answer.to_dict(), strict=True)
    ask(client)
    assert loader.n_loads == 1


def test_deepgrams_paragraphs_name_their_speakers(server):
    query = "/v1/listen?diarize=true&paragraphs=true&utterances=true"
    results = server.http.post(query, content=RECORDING).json()["results"]
    paragraphs = results["channels"][0]["alternatives"][0]["paragraphs"]
    assert [each["speaker"] for each in paragraphs["paragraphs"]] == [0, 1] * 12
    said = [f"Speaker {each['speaker']}: {each['transcript'].strip()}" for each in results["utterances"]]
    assert paragraphs["transcript"].split("\n\n") == said


def test_known_voices_have_their_names(client):
    longest = data_url(np.tile(SAMPLE, 3)[: 10 * SAMPLE_RATE])
    answer = ask(client, known_speaker_names=["Ann", "Ben"], known_speaker_references=[WAVE, longest])
    assert {segment.speaker for segment in answer.segments} == {"Ann", "Ben"}


def test_segments_are_streamed_with_their_speakers(client):
    *events, done = ask(client, stream=True)
    deltas = [event for event in events if isinstance(event, TranscriptionTextDeltaEvent)]
    segments = [event for event in events if isinstance(event, TranscriptionTextSegmentEvent)]
    assert len(deltas) == len(segments) == len(events) / 2
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert "".join(delta.delta for delta in deltas) == done.text
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in segments]
    plain = [segment.to_dict() for segment in ask(client).segments]
    assert [segment.to_dict() for segment in segments] == plain


def test_own_events_bring_the_transcript_with_speakers(server):
    wanted = {"response_format": "diarized_json", "stream": "true", "include": "harken.events"}
    answer = post(server.http, RECORDING, **wanted)
    (document,) = [event["transcript"] for event in events_of(answer.text) if "transcript" in event]
    rendered = server.http.post("/v1/harken/render?format=tsv", json=document)
    assert [entry["name"] for entry in document["speakers"]] == ["A", "B"]
    assert document["segments"][0]["speaker"] == "A"
    assert rendered.text.splitlines()[0] == "start\tend\ttext\tspeaker"


def test_samples_that_are_of_no_use_are_refused(client):
    names, references = "known_speaker_names", "known_speaker_references"
    for given_names, given, param, code in (
        (["Ann"], [], references, "invalid_value"),
        (["Ann", "Ann"], [WAVE, WAVE], names, "invalid_value"),
        (["A" * 101], [WAVE], names, "invalid_value"),
        ([*"ABCDE"], [WAVE] * 5, names, "invalid_value"),
        (["Ann"], ["https://example.org/ann.wav"], references, "invalid_value"),
        (["Ann"], ["data:audio/wav;base64,!!"], references, "invalid_value"),
        (["Ann"], ["data:audio/wav;base64,UklGRg=="], references, "invalid_audio"),
        (["Ann"], [data_url(SAMPLE[:16_000])], references, "invalid_audio"),
        (["Ann"], [data_url(np.tile(SAMPLE, 3))], references, "invalid_audio"),
        (["Ann"], [data_url(0 * SAMPLE)], references, "invalid_audio"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, **{names: given_names, references: given})
        assert (refused.value.param, refused.value.code) == (param, code)
        assert len(refused.value.message) < 400
        assert code != "invalid_audio" or "Ann" in refused.value.message
        assert "BytesIO" not in refused.value.message


def test_only_transcriptions_in_the_format_with_speakers_have_them(server):
    voices = {"known_speaker_names": "Ann", "known_speaker_references": WAVE}
    untold = post(server.http, RECORDING, **voices)
    translated = post(server.http, RECORDING, "/v1/audio/translations", response_format="diarized_json")
    line = check_refused(untold, 400, "unsupported_value", "response_format")
    assert "allowed is diarized_json" in line
    check_refused(translated, 400, "invalid_value", "response_format")


@pytest.mark.parametrize("missing", [CheckpointNotFound, OutputError])
@leaping
async def test_missing_models_are_said_without_their_path_and_looked_for_again_a_minute_later(missing):
    loader = Loader()
    service = Service(lambda id: None, ["tones"], ServeOptions(), {}, loader)
    loader.problem = missing("/secret/speakers: cannot be had")
    for _ in range(3):
        with pytest.raises(RequestError, match="has no models to tell speakers apart") as refused:
            await service.diarizer("diarize")
        assert (refused.value.status, refused.value.code) == (400, "unsupported_value")
        assert "secret" not in str(refused.value)
    assert loader.n_loads == 1
    loader.problem = None
    await leap(61)
    first, second = await asyncio.gather(service.diarizer("diarize"), service.diarizer("diarize"))
    assert first is second is await service.diarizer("diarize")
    assert loader.n_loads == 2

"""OpenAI's REST API, as OpenAI's own client uses it."""

import asyncio
import json
from functools import partial
from typing import Any

import openai
import pytest
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
    Translation,
    TranslationVerbose,
)
from served_audio import wav
from tone_server import PATH, check_refused, events_of, post, speak, transcribe_tones

from cli_runner import eventually
from harken.cli.root import main
from harken.formats import from_json
from harken.serve.rest.transcription_form import RESPONSE_FORMATS
from real_models import EXAMPLE

SPEECH = speak(30)
RECORDING, TEXT = wav(SPEECH.samples), transcribe_tones(SPEECH, positions=200)


def create(client, **fields):
    """Have the speech transcribed, or another file."""
    given = {"model": "tones", "language": "en", "file": RECORDING} | fields
    return client.audio.transcriptions.create(**given)


def test_json_has_the_text_the_language_the_usage_and_logprobs_of_words(client):
    answer = create(client)
    assert isinstance(answer, Transcription)
    assert answer.text == TEXT
    assert answer.to_dict()["languages"] == [{"code": "en"}]
    assert answer.to_dict()["usage"] == {"type": "duration", "seconds": 12.0}
    assert answer.logprobs is None
    answer = create(client, include=["logprobs"])
    assert "".join(logprob.token for logprob in answer.logprobs).strip() == answer.text != ""
    for logprob in answer.logprobs:
        assert bytes(map(int, logprob.bytes)).decode() == logprob.token
        assert logprob.logprob <= 0


def test_verbose_json_has_segments_and_words_as_they_are_asked_for(client):
    def ask(*granularities):
        return create(client, response_format="verbose_json", timestamp_granularities=[*granularities])

    by_default, words, both = ask("segment"), ask("word"), ask("word", "segment")
    assert by_default.words is None
    assert words.segments is None
    assert both.words == words.words
    assert by_default.segments
    assert both.segments
    assert {answer.text for answer in (by_default, words, both)} == {TEXT}
    assert {answer.language for answer in (by_default, words, both)} == {"english"}
    assert words.words
    assert all(0 <= word.start <= word.end <= 12 for word in words.words)
    assert " ".join(word.word for word in words.words).replace(" ", "") == words.text.replace(" ", "")
    assert "".join(segment.text for segment in both.segments).strip() == both.text
    assert [segment.seek for segment in both.segments] == sorted(segment.seek for segment in both.segments)
    TranscriptionVerbose.model_validate(both.to_dict(), strict=False)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_translations_answer_in_english(client):
    translate = client.audio.translations.create
    plain = translate(model="tones", file=RECORDING)
    verbose = translate(model="tones", file=RECORDING, response_format="verbose_json")
    assert isinstance(plain, Translation)
    assert isinstance(verbose, TranslationVerbose)
    assert verbose.language == "english"
    assert plain.text == verbose.text != ""


def transcribe_file(model, monkeypatch, folder, *arguments):
    """Run ``harken transcribe`` for the example, with the model of the server."""
    monkeypatch.setattr("harken.cli.model_options.load", lambda **given: model)
    command = ["transcribe", str(EXAMPLE), "-f", "json,srt,vtt", "-o", str(folder), "--no-progress", "-q"]
    assert main([*command, *arguments]) == 0
    return json.loads((folder / "jfk.json").read_text(encoding="utf-8"))


def ask_real(server, name, path=PATH, **fields):
    data = {"model": "whisper-1", "response_format": name, **fields}
    files = {"file": EXAMPLE.read_bytes()}
    return server.http.post(path, data=data, files=files)


def text_of(document):
    return "".join(segment["text"] for segment in document["segments"]).strip()


def check_verbose(body, document):
    assert body["text"] == text_of(document)
    for key in ("start", "end", "text", "tokens", "avg_logprob"):
        assert [segment[key] for segment in body["segments"]] == [
            segment[key] for segment in document["segments"]
        ]
    words = [word for segment in document["segments"] for word in segment.get("words", [])]
    for key in ("start", "end", "word"):
        stripped = [word[key].strip() if key == "word" else word[key] for word in words]
        assert [word[key] for word in body.get("words", [])] == stripped


@pytest.mark.real
def test_every_format_has_the_text_of_the_command_line(unhurried_server, unhurried, tmp_path, monkeypatch):
    document = transcribe_file(unhurried, monkeypatch, tmp_path)
    answers = {name: ask_real(unhurried_server, name) for name in RESPONSE_FORMATS}
    assert f"{answers['json'].json()['text']}\n" == answers["text"].text == f"{text_of(document)}\n"
    for name in ("srt", "vtt"):
        assert answers[name].text == (tmp_path / f"jfk.{name}").read_text(encoding="utf-8")
    check_verbose(answers["verbose_json"].json(), document)
    types = ("application/json", "text/plain", "application/x-subrip", "application/json", "text/vtt")
    for answer, type in zip(answers.values(), types, strict=True):
        assert answer.headers["content-type"] == type + "; charset=utf-8" * (type != "application/json")


@pytest.mark.real
def test_fields_have_the_effect_of_the_options_of_the_command_line(
    unhurried_server, unhurried, tmp_path, monkeypatch
):
    document = transcribe_file(
        *(unhurried, monkeypatch, tmp_path),
        *("--word-timestamps", "--initial-prompt", "A speech.", "--hotwords", "fellow Americans"),
        *("--temperatures", "0.2,0.4,0.6,0.8,1.0", "--vad-threshold", "0.6"),
        *("--vad-min-silence-s", "0.5", "--vad-speech-pad-s", "0.25", "--language", "en"),
    )
    fields = {
        "timestamp_granularities[]": ["word", "segment"],
        "prompt": "A speech.",
        "keywords[]": "fellow Americans",
        "temperature": "0.2",
        "chunking_strategy": '{"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 500}',
        "language": "en",
    }
    check_verbose(ask_real(unhurried_server, "verbose_json", **fields).json(), document)


@pytest.mark.real
def test_an_english_model_refuses_what_it_cannot_do(unhurried_server):
    for path, language, param in (("/v1/audio/translations", "en", "model"), (PATH, "de", "language")):
        answer = ask_real(unhurried_server, "json", path, language=language)
        assert "this model is English-only" in check_refused(answer, 400, "invalid_value", param)


def test_deltas_together_are_the_text_to_both_clients(tones, client):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{tones.url}/v1", api_key="none") as client:
            return [event async for event in await create(client, stream=True)]

    for *deltas, done in ([*create(client, stream=True)], asyncio.run(ask())):
        assert len(deltas) > 1
        assert {type(event) for event in deltas} == {TranscriptionTextDeltaEvent}
        assert isinstance(done, TranscriptionTextDoneEvent)
        assert "".join(event.delta for event in deltas) == done.text == TEXT
        assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
        TranscriptionTextDoneEvent.model_validate(done.to_dict())


def test_a_failure_in_the_middle_of_a_stream_reaches_the_client(client):
    cut = wav(SPEECH.samples, n_bytes=300_000)
    stream = create(client, file=cut, stream=True)
    assert isinstance(next(iter(stream)), TranscriptionTextDeltaEvent)
    with pytest.raises(openai.APIError, match="could be decoded; the file is cut short") as failed:
        for _ in stream:
            pass
    assert failed.value.body["code"] == "invalid_audio"


def test_own_events_tell_progress_and_bring_the_transcript(http):
    wanted = {"stream": "true", "include[]": "harken.events", "timestamp_granularities[]": "word"}
    answer = post(http, RECORDING, **wanted)
    events = events_of(answer.text)
    progress = [event for event in events if event["type"] == "harken.progress"]
    segments = [event["segment"] for event in events if event["type"] == "harken.segment"]
    (document,) = [event["transcript"] for event in events if event["type"] == "harken.transcript"]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [event["done_s"] for event in progress] == sorted(event["done_s"] for event in progress)
    assert progress[-1] == {"type": "harken.progress", "done_s": 12.0, "duration_s": 12.0}
    assert segments == document["segments"]
    assert segments[0]["words"]
    assert document["model"] == "tones"
    assert [event["type"] for event in events[-2:]] == ["harken.transcript", "transcript.text.done"]
    assert from_json(document).text == document["text"] == events[-1]["text"]


def test_models_are_listed_and_found_and_info_tells_what_a_loaded_one_can_do(client):
    assert [model.id for model in client.models.list()] == ["tones"]
    model = client.models.retrieve("tones")
    assert (model.id, model.object) == ("tones", "model")
    assert client.models.retrieve("whisper-1").id == "whisper-1"
    line = r"'openai/whisper-huge' is not served; allowed is one of tones, .*--alias '\*=tones'"
    with pytest.raises(openai.NotFoundError, match=line) as missing:
        client.models.retrieve("openai/whisper-huge")
    assert missing.value.code == "model_not_found"
    create(client)
    info = client.get("/harken/info", cast_to=dict[str, Any])
    (model,) = info["models"]
    assert model["multilingual"]
    assert {"code": "de", "name": "german"} in model["languages"]
    assert "srt" in info["formats"]
    assert "low" in info["delays"]


@pytest.mark.parametrize(
    ("file", "fields", "param", "code"),
    [
        (b"no recording", {}, "file", "invalid_audio"),
        (b"", {}, "file", "invalid_audio"),
        (wav(SPEECH.samples[:800]), {}, "file", "audio_too_short"),
        (RECORDING, {"model": "large"}, "model", "model_not_found"),
        (RECORDING, {"temperature": 40}, "temperature", "invalid_value"),
        (RECORDING, {"response_format": "diarized_json"}, "response_format", "unsupported_value"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_requests_are_refused_once(tones, client, file, fields, param, code):
    count = partial(tones.metric, "harken_requests_total", route=PATH, status="400")
    before = count()
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, file=file, **fields)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert refused.value.request_id
    assert eventually(lambda: count() > before)
    assert count() == before + 1

"""The messages of the sockets of Deepgram and Vosk, beside what the clients of all protocols can rely on."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from clients import DeepgramClient, VoskClient, asking, played, until
from leaping import leap, settled
from realtime_script import final, interim, word
from served_audio import wav
from starlette.datastructures import QueryParams
from websockets.sync.client import connect

from fakes.live_sessions import make_segment, speech_ended, speech_started, words_said
from harken.serve.live.deepgram import DeepgramTranslator
from harken.serve.live.translator import HangUp, Mark
from harken.serve.live.vosk import VoskTranslator
from harken.serve.work.jobs import Flushed

RAW = "encoding=linear16&sample_rate=16000"


def told(outputs):
    return [json.loads(output) for output in outputs if isinstance(output, str)]


def test_another_name_of_captions_is_refused_in_a_line(tones):
    line = "captions='a.b': allowed are 1 to 64 letters"
    assert line in tones.http.get("/v1/captions/a.b").json()["error"]["message"]
    for path in ("realtime", f"listen?{RAW}"):
        refused = tones.refusal(f"/v1/{path}{'&' if '?' in path else '?'}captions=a.b")
        assert refused.status_code == 400
        assert line in refused.body.decode()
    with connect(f"{tones.socket_url}/v1/stream?captions=a.b") as socket:
        assert line in json.loads(socket.recv())["message"]


@played()
async def test_the_results_of_deepgram(stage):
    events = "interim_results=true&vad_events=true&utterance_end_ms=1000&endpointing=25&filler_words=false"
    query = f"{RAW}&{events}&language=en-US&keyterm=Ask&keyterm=not&model=nova-3"
    translator = DeepgramTranslator(QueryParams(query), stage.service)
    options = translator.stream.options
    assert (options.language, options.hotwords) == ("en", ("Ask", "not"))
    for endpointing, ends in (("False", False), ("True", True), ("300", True)):
        query = f"{RAW}&detect_language=True&endpointing={endpointing}"
        (said,) = told(DeepgramTranslator(QueryParams(query), stage.service).updated(speech_ended(1.0)))
        assert said["speech_final"] == ends
    shown = interim(" Ask", tentative=" nut", at_s=1.0)
    events = (speech_started(0.2), shown, final(" Ask", " not!"), speech_ended(2.0))
    started, shown, said = told(output for event in events for output in translator.updated(event))
    assert started == {"type": "SpeechStarted", "channel": [0, 1], "timestamp": 0.2}
    texts = [each["channel"]["alternatives"][0]["transcript"] for each in (shown, said)]
    assert texts == ["Ask nut", "Ask not!"]
    ends = [(each["is_final"], each["speech_final"]) for each in (shown, said)]
    assert ends == [(False, False), (True, True)]
    assert (said["start"], said["duration"]) == (0.0, 2.0)
    assert said["metadata"]["request_id"] == shown["metadata"]["request_id"]
    words = said["channel"]["alternatives"][0]["words"]
    assert [(word["word"], word["punctuated_word"]) for word in words] == [("ask", "Ask"), ("not", "not!")]
    assert not any(isinstance(output, Mark) for output in translator.received(bytes(32_000)))
    mark = next(output for output in translator.received(bytes(16_000)) if isinstance(output, Mark))
    (ended,) = told(translator.updated(Flushed(token=mark.token)))
    assert ended == {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 0.5}
    assert told(translator.updated(Flushed(token=mark.token))) == []
    multilingual = DeepgramTranslator(QueryParams(f"{RAW}&language=multi"), stage.service)
    said, silent = (
        told(output for event in (*events, speech_ended(2.0)) for output in multilingual.updated(event))[0]
        for events in ([final(" Ask")], [])
    )
    assert said["channel"]["alternatives"][0]["languages"] == ["en"]
    assert "languages" not in silent["channel"]["alternatives"][0], "clients take the first of the list"
    *_, metadata, hang_up = translator.received('{"type": "CloseStream"}')
    assert json.loads(metadata)["duration"] == 1.5
    assert isinstance(hang_up, HangUp)


@played()
async def test_the_end_of_an_utterance_is_told_if_its_silence_came_before_it_was_heard(stage):
    translator = DeepgramTranslator(QueryParams(f"{RAW}&utterance_end_ms=1000"), stage.service)
    assert not any(isinstance(output, Mark) for output in translator.received(bytes(64_000)))
    for event in (speech_started(0.2), final(" Ask", " not!")):
        assert told(translator.updated(event)) == []
    _, mark = translator.updated(speech_ended(1.0))
    assert isinstance(mark, Mark)
    *_, second = translator.received(bytes(3_200))
    (ended,) = told(translator.updated(Flushed(token=mark.token)))
    assert (ended["type"], ended["last_word_end"]) == ("UtteranceEnd", 0.5)
    later = replace(final(), segment=make_segment(replace(word(" Now"), end_s=1.9)))
    for event in (speech_started(1.5), later, speech_ended(2.1)):
        told(translator.updated(event))
    assert told(translator.updated(Flushed(token=second.token))) == [], "its silence was before the last word"
    (ended,) = told(translator.updated(speech_started(2.9)))
    assert (ended["type"], ended["last_word_end"]) == ("UtteranceEnd", 1.9), "all audio has come already"
    assert told(translator.updated(speech_started(4.0))) == []
    last = replace(final(), segment=make_segment(replace(word(" Bye"), end_s=4.5)))
    for event in (last, speech_ended(4.9)):
        told(translator.updated(event))
    told(translator.received(bytes(128_000)))
    ended, metadata = told(translator.received('{"type": "CloseStream"}'))
    assert (ended["type"], ended["last_word_end"], metadata["duration"]) == ("UtteranceEnd", 4.5, 6.1)


@played()
async def test_finalize_is_answered_even_if_nothing_was_said(stage):
    client = await stage.connect(DeepgramClient)
    client.send({"type": "Finalize"})
    client.say(3)
    client.send({"type": "Finalize"})
    client.finish()
    await until(client.serving.done)
    finals = [message for message in client.messages if message.get("is_final")]
    assert [final["from_finalize"] for final in finals] == [True, True]
    assert client.text == words_said(3)
    assert (client.messages[-1]["type"], client.close_code) == ("Metadata", 1000)


@played()
async def test_a_container_that_is_cut_short_gives_its_words_and_then_an_error(stage):
    client = await stage.connect(asking(DeepgramClient, query=b"model=nova-3"))
    client.send(wav(np.zeros(48_000, np.float32), n_bytes=20_000))
    client.finish()
    await until(client.serving.done)
    assert (client.text, client.errors, client.close_code) == (words_said(6), ["invalid_audio"], 1008)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("encoding=opus", "invalid_value"),
        ("encoding=linear16", "missing_required_parameter"),
        ("encoding=mulaw&sample_rate=1", "invalid_value"),
        (f"{RAW}&channels=0", "invalid_value"),
        (f"{RAW}&utterance_end_ms=-5", "invalid_value"),
        (f"{RAW}&endpointing=-5", "invalid_value"),
        (f"{RAW}&language=klingon", "invalid_value"),
        (f"{RAW}&model=large", "model_not_found"),
        (f"{RAW}&callback=https://results.example", "invalid_value"),
    ],
)
@played()
async def test_an_address_that_asks_for_what_is_not_allowed_is_refused(stage, query, code):
    client = await stage.connect(asking(DeepgramClient, query=query.encode()))
    await until(client.serving.done)
    assert (client.close_code, client.messages[-1]["err_code"]) == (400, code)


@played()
async def test_a_language_that_the_model_does_not_know_is_refused_before_any_audio(stage):
    client = await stage.connect(asking(DeepgramClient, query=f"{RAW}&language=de".encode()))
    await until(client.serving.done)
    assert (client.close_code, client.errors) == (1008, ["invalid_value"])
    assert client.messages[0]["description"].startswith("language='de'")


@played()
async def test_the_end_of_the_server_does_not_wait_for_what_is_checked_first(stage):
    stage.service.check = lambda *given, **named: asyncio.Event().wait()  # as while a model is loaded
    client = await stage.connect(DeepgramClient)
    await settled()
    await stage.service.drain()
    await until(client.serving.done)
    assert (client.errors, client.close_code) == (["draining"], 1012)


@played(gate_from=0)
async def test_vosk_answers_each_message_of_audio_and_tells_the_rest_at_the_end(stage):
    """Also where all is sent before the first audio has been heard."""
    client = await stage.connect(VoskClient)
    client.send({"config": {"sample_rate": "8000.0", "words": False, "phrase_list": ["word", "[unk]"]}})
    for _ in range(14):
        client.say(1)
    client.send('{"reset" : 1}')
    client.send({"config": {"words": True, "max_alternatives": 1}})
    client.say(2)
    client.finish()
    await until(lambda: stage.gate.heard)
    await leap(1)
    stage.gate.open.set()
    await until(client.serving.done)
    assert stage.model.options[0].hotwords == ("word",)
    *replies, reset, _, end = client.messages
    assert len(replies) == 14
    assert {*replies[0]} == {"partial"}
    assert " ".join(reply["text"] for reply in replies if "text" in reply) == words_said(10)
    assert reset["text"].startswith("word10")
    (alternative,) = end["alternatives"]
    assert alternative["text"] == " ".join(word["word"] for word in alternative["result"])
    assert client.close_code == 1000


@played()
async def test_vosk_tells_no_result_of_an_utterance_without_words(stage):
    translator = VoskTranslator(stage.service)
    *_, mark = translator.received(bytes(1600))
    replies = [*translator.updated(speech_ended(0.1)), *translator.updated(Flushed(token=mark.token))]
    assert told(replies) == [{"partial": ""}]

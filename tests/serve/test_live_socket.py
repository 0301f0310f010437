"""The own WebSocket, spoken with by a real client; the words come from a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from fakes.live_recognizer import LiveRecognizer
from harken.serve.options import ServeOptions
from serve.live_client import LiveClient, opened, resumed, wait_for
from serve.serving import Serving, serving

BLOCK = bytes(3200)  # a tenth of a second: one word
OPTIONS = ServeOptions(preload=False, resume_s=5.0)


@pytest.fixture(scope="module")
def recognizer() -> LiveRecognizer:
    return LiveRecognizer()


@pytest.fixture(scope="module")
def server(recognizer: LiveRecognizer) -> Iterator[Serving]:
    with serving(lambda id: recognizer, options=OPTIONS) as running:
        yield running


def test_events_come_numbered_and_the_stream_ends_with_done(server: Serving) -> None:
    client, ready = opened(server)
    with client:
        assert ready["received"] == ready["seq"] == 0
        assert ready["model"] == "tiny.en"
        assert (ready["delay"], ready["bound_ms"]) == ("low", 1001)
        client.audio(BLOCK * 7)
        client.send(type="end")
        assert client.drain() == 1000
    assert client.finals() == [" And so my fellow Americans", " ask not"]
    assert client.numbers() == sorted(set(client.numbers()))
    assert client.messages[-1] == {"type": "done", "seq": client.numbers()[-1]}
    assert client.messages[1]["event"] == "speech_started"


def test_a_flush_ends_the_utterance_and_is_answered_behind_its_events(server: Serving) -> None:
    client, _ = opened(server)
    with client:
        client.audio(BLOCK * 2)
        client.send(type="flush")
        flushed = client.until(type="flushed")
        assert client.messages[-2]["reason"] == "flush"
        assert flushed["seq"] == client.messages[-2]["seq"] + 1
        client.send(type="ping")
        assert client.until(type="pong")
        client.send(type="flush")
        client.send(type="flush")
        assert client.until(type="flushed")["seq"] < client.until(type="flushed")["seq"]


@pytest.mark.parametrize(
    ("first", "code", "param"),
    [
        ({"type": "hi"}, "invalid_value", "type"),
        ({"type": "hello", "delay": "soon"}, "invalid_value", "delay"),
        ({"type": "hello", "words": "yes"}, "invalid_value", "words"),
        ({"type": "hello", "prompt": 3}, "invalid_value", "prompt"),
        ({"type": "hello", "beam_size": 64}, "invalid_value", "beam_size"),
        ({"type": "hello", "language": "de"}, "invalid_value", "language"),
        ({"type": "hello", "model": "large"}, "model_not_found", "model"),
        ({"type": "hello", "audio": []}, "invalid_value", "audio"),
        ({"type": "hello", "audio": {"format": "ogg"}}, "invalid_value", "format"),
        ({"type": "hello", "audio": {"rate": 1}}, "invalid_value", "rate"),
        ({"type": "hello", "audio": {"channels": 0}}, "invalid_value", "channels"),
        ({"type": "resume", "session": "x"}, "invalid_value", "token"),
        ({"type": "resume", "session": "x", "token": "\ud800"}, "invalid_value", "token"),
        ({"type": "hello", "\ud800": 1}, "invalid_value", "\ud800"),
        ({"type": "resume", "session": "x", "token": "y"}, "session_not_found", "session"),
    ],
)
def test_a_wrong_first_message_is_refused_in_a_line(
    server: Serving, first: dict[str, Any], code: str, param: str
) -> None:
    with LiveClient(server, **first) as client:
        assert client.drain() == 1008
        (error,) = client.messages
        assert (error["type"], error["code"], error["param"]) == ("error", code, param)
        assert (param if code != "session_not_found" else "session") in error["message"]
        assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("message", "close_code"),
    [("{", 1008), ("[]", 1008), ('{"type": "say"}', 1008), ("[" * 10_000, 1008), (bytes(1 << 21), 1009)],
)
def test_a_wrong_later_message_ends_the_session(server: Serving, message: str | bytes, close_code: int) -> None:
    before = server.service.admission.n_streams
    client, ready = opened(server)
    with client:
        client.socket.send(message)
        assert client.drain() == close_code
    with resumed(server, ready, 0) as again:
        assert again.receive()["code"] == "session_not_found"
    wait_for(lambda: server.service.admission.n_streams <= before)


@pytest.mark.parametrize("cut", [1, 3, 5, 6, 11])
def test_a_resumed_session_loses_and_doubles_nothing(server: Serving, cut: int) -> None:
    client, ready = opened(server)
    client.audio(BLOCK * cut)
    client.receive()
    seen = client.messages[-1]["seq"]
    client.vanish()

    with resumed(server, ready, seen) as again:
        ready = again.receive()
        assert ready["type"] == "ready"
        again.audio((BLOCK * 13)[ready["received"] :])
        again.send(type="end")
        assert again.drain() == 1000

    whole, _ = opened(server)
    with whole:
        whole.audio(BLOCK * 13)
        whole.send(type="end")
        whole.drain()
    assert client.events() + again.events() == whole.events()


def test_a_resumed_session_tells_again_what_its_client_has_not_seen(server: Serving) -> None:
    client, ready = opened(server)
    with client:
        client.audio(BLOCK * 11)
        client.until(event="interim", audio_s=1.1)
    first_final = next(m["seq"] for m in client.messages if m.get("event") == "final_segment")
    with resumed(server, ready, first_final - 1) as again:
        assert again.receive()["received"] == 11 * len(BLOCK)
        again.until(event="interim", audio_s=1.1)
        events = [message["event"] for message in again.messages[1:-1] if message["event"] != "interim"]
        assert events == [
            *("final_segment", "speech_ended"),
            *("speech_started", "final_segment", "speech_ended"),
            "speech_started",
        ]
        again.send(type="end")
        assert again.drain() == 1000


def test_acknowledged_messages_are_not_kept(server: Serving) -> None:
    client, ready = opened(server)
    with client:
        client.audio(BLOCK * 5)
        seq = client.until(event="speech_ended")["seq"]
        client.send(type="ack", seq=seq)
        client.send(type="ping")
        client.until(type="pong")
    with resumed(server, ready, 0) as late:
        assert late.drain() == 1008
        assert late.messages[0]["code"] == "messages_not_kept"
        assert f"allowed is {seq} to {seq}" in late.messages[0]["message"]
    with resumed(server, ready, seq) as again:
        assert again.receive()["type"] == "ready"


def test_a_second_connection_takes_a_session_over(server: Serving) -> None:
    client, ready = opened(server)
    with client, resumed(server, ready, 0) as other:
        assert other.receive()["type"] == "ready"
        assert client.drain() == 1008
        assert client.messages[-1]["code"] == "taken_over"
        other.audio(BLOCK * 5)
        assert other.until(event="final_segment")


def test_another_token_resumes_nothing(server: Serving) -> None:
    client, ready = opened(server)
    with client, LiveClient(server, type="resume", session=ready["session"], token="guess") as other:
        assert other.drain() == 1008
        client.audio(BLOCK * 5)
        assert client.until(event="final_segment")


def test_the_done_of_a_lost_connection_comes_again(server: Serving) -> None:
    client, ready = opened(server)
    with client:
        client.audio(BLOCK * 2)
        client.send(type="end")
        client.drain()
    with resumed(server, ready, client.numbers()[0]) as again:
        with suppress(ConnectionClosed):  # all may have been sent before this
            again.send(type="end")
        assert again.drain() == 1000
        assert again.messages[0]["ended"]
        assert again.finals() == client.finals()
        assert again.messages[-1]["type"] == "done"


def test_raw_samples_of_other_formats_are_words_too(server: Serving, recognizer: LiveRecognizer) -> None:
    tone = 0.5 * np.sin(np.arange(24_000) * 0.05)
    client, _ = opened(server, audio={"format": "f32le", "rate": 48_000})
    with client:
        data = tone.astype("<f4").tobytes()
        client.socket.send(data[:4001])
        client.socket.send(data[4001:])
        client.send(type="end")
        assert client.drain() == 1000
    heard = recognizer.sessions[-1].samples
    assert abs(len(heard) - 8000) < 80
    assert 0.3 < np.std(heard[1000:7000]) < 0.4


def test_floats_that_are_not_finite_end_the_stream(server: Serving) -> None:
    client, _ = opened(server, audio={"format": "f32le"})
    with client:
        client.socket.send(np.full(1600, np.nan, "<f4").tobytes())
        assert client.drain() == 1008
        assert client.messages[-1]["code"] == "invalid_audio"


def test_the_options_of_a_hello_reach_the_model(server: Serving, recognizer: LiveRecognizer) -> None:
    client, _ = opened(
        server, language="en", hotwords=["Ada"], prompt="Names:", words=True, finals="streamed", pause_s=2
    )
    with client:
        options = recognizer.options[-1]
    assert (options.hotwords, options.initial_prompt, options.word_timestamps) == (("Ada",), "Names:", True)

"""What clients of the own WebSocket may send: containers, garbage, too much, too fast."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from fakes.live_recognizer import LiveRecognizer
from harken.contract import Floats
from harken.serve.options import ServeOptions
from serve.live_client import LiveClient, opened, wait_for
from serve.served_audio import wav, webm
from serve.serving import Serving, serving


@pytest.fixture(scope="module")
def recognizer() -> LiveRecognizer:
    return LiveRecognizer()


@pytest.fixture(scope="module")
def server(recognizer: LiveRecognizer) -> Iterator[Serving]:
    options = ServeOptions(preload=False, resume_s=0, session_limit_s=100)
    with serving(lambda id: recognizer, options=options) as running:
        yield running


def tone(seconds: float) -> Floats:
    return (0.25 * np.sin(np.arange(round(16_000 * seconds)) * 0.05)).astype(np.float32)


@pytest.mark.parametrize("block_bytes", [7, 333, 1 << 20])
def test_a_container_may_be_cut_anywhere(server: Serving, recognizer: LiveRecognizer, block_bytes: int) -> None:
    data = wav(tone(0.25))
    client, _ = opened(server, audio={"format": "container"})
    with client:
        client.audio(data, block_bytes)
        client.send(type="end")
        assert client.drain() == 1000
    assert client.finals() == [" And so"]
    assert (recognizer.sessions[-1].samples * 32768).astype("<i2").tobytes() == data[44:]


def test_a_flush_comes_behind_all_that_can_be_decoded(server: Serving, recognizer: LiveRecognizer) -> None:
    data = webm(tone(2.0))
    client, _ = opened(server, audio={"format": "container"})
    with client:
        client.audio(data[: len(data) // 2], 100)
        client.send(type="flush")
        client.until(type="flushed")
        assert "flush" in [event.get("reason") for event in client.events()]
        assert 0.4 < client.events()[-1]["audio_s"] <= 1.1
        client.audio(data[len(data) // 2 :])
        client.send(type="end")
        assert client.drain() == 1000
    assert abs(len(recognizer.sessions[-1].samples) - 32_000) < 1000


def test_what_is_no_recording_ends_the_stream_in_a_line(server: Serving) -> None:
    client, _ = opened(server, audio={"format": "container"})
    with client:
        client.audio(b"this is no recording" * 1000)
        client.send(type="end")
        assert client.drain() == 1008
    error = client.messages[-1]
    assert error["code"] == "invalid_audio"
    assert "\n" not in error["message"]


def test_a_recording_that_is_cut_short_gives_its_words_and_then_an_error(server: Serving) -> None:
    client, _ = opened(server, audio={"format": "container"})
    with client:
        client.audio(wav(tone(3.0))[:20_000])
        client.send(type="end")
        assert client.drain() == 1008
    assert client.finals() == [" And so my fellow Americans", " ask"]
    assert "cut short" in client.messages[-1]["message"]


def test_a_container_that_is_left_frees_its_thread(server: Serving) -> None:
    data = webm(tone(2.0))
    client, _ = opened(server, audio={"format": "container"})
    with client:
        client.audio(data[: len(data) // 2])
        client.until(event="speech_started")
    wait_for(lambda: not any(thread.name == "harken container" for thread in threading.enumerate()))


MESSAGES = st.one_of(
    st.binary(max_size=50),
    st.text(max_size=20),
    st.sampled_from([{"type": "flush"}, {"type": "end"}, {"type": "ping"}, {"type": "ack", "seq": 1}]).map(
        json.dumps
    ),
    st.dictionaries(
        st.sampled_from(
            ["type", "seq", "model", "delay", "audio", "words", "hotwords", "pause_s", "session", "token"]
        ),
        st.one_of(
            st.none(),
            st.integers(),
            st.floats(),
            st.text(max_size=5),
            st.sampled_from(["hello", "resume", "ack"]),
        ),
    ).map(json.dumps),
)


@settings(max_examples=25, deadline=None)
@given(hello=st.booleans(), messages=st.lists(MESSAGES, max_size=5))
def test_whatever_comes_is_answered_with_a_code_of_the_protocol(
    server: Serving, hello: bool, messages: list[Any]
) -> None:
    with LiveClient(server) as client:
        if hello:
            client.send(type="hello")
        with suppress(ConnectionClosed):
            for message in [*messages, "{"]:
                client.socket.send(message)
        assert client.drain() in (1000, 1008)
    assert all("event" in message or "type" in message for message in client.messages)

"""The own WebSocket with the real model: what is said comes back as words, whatever happens to the connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harken.api import Recognizer
from harken.audio import load_audio
from harken.contract import Floats
from harken.formats import as_json
from harken.serve.options import ServeOptions
from harken.streaming import FinalSegment, LiveSession, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE
from real_models import recognizer as real_recognizer
from serve.live_client import opened, resumed
from serve.served_audio import pcm, webm
from serve.serving import Serving, serving

pytestmark = pytest.mark.real


class Unhurried:
    """A recognizer whose live streams do all their work, however slow the machine is."""

    def __init__(self, recognizer: Recognizer) -> None:
        self._recognizer = recognizer
        self.tokenizer = recognizer.tokenizer
        self.resolve_options = recognizer.resolve_options

    def stream(self, options: TranscribeOptions, *, stream_options: StreamOptions) -> LiveSession:
        return self._recognizer.stream(options, stream_options=stream_options, clock=None)


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return real_recognizer("int8")


@pytest.fixture(scope="module")
def samples() -> Floats:
    return load_audio(EXAMPLE)[: 6 * SAMPLE_RATE]


@pytest.fixture(scope="module")
def server(recognizer: Recognizer) -> Iterator[Serving]:
    unhurried: Any = Unhurried(recognizer)
    with serving(lambda id: unhurried, options=ServeOptions(preload=False, resume_s=60)) as running:
        yield running


def test_a_lost_connection_costs_no_word_and_doubles_none(
    recognizer: Recognizer, server: Serving, samples: Floats
) -> None:
    data = pcm(samples)
    client, ready = opened(server)
    client.audio(data[:80_000])
    client.until(event="interim")
    client.audio(data[80_000:120_000], 7001)  # in the middle of the utterance, and of a sample
    client.vanish()
    with resumed(server, ready, client.messages[-1]["seq"]) as again:
        again.audio(data[again.receive()["received"] :])
        again.send(type="end")
        assert again.drain() == 1000
    session = recognizer.stream(clock=None)
    segments = [e.segment for e in session.feed(samples) + session.close() if isinstance(e, FinalSegment)]
    assert "my fellow Americans" in segments[0].text
    heard = [message["segment"] for message in client.messages + again.messages if "segment" in message]
    assert heard == [as_json(segment) for segment in segments]


def test_the_container_of_a_browser_is_decoded_as_it_comes(server: Serving, samples: Floats) -> None:
    data = webm(samples)
    client, _ = opened(server, audio={"format": "container"}, delay="minimal")
    with client:
        client.audio(data[: len(data) // 2], 997)
        client.until(event="interim")  # words before the rest has come
        client.audio(data[len(data) // 2 :], 997)
        client.send(type="flush")
        client.until(type="flushed")
        client.send(type="end")
        assert client.drain() == 1000
    assert "my fellow Americans" in "".join(client.finals())

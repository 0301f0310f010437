"""OpenAI's own client and plain WebSockets against a server: the route, its keys and subprotocols, real speech."""

from __future__ import annotations

import asyncio
import io
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, PermissionDeniedError
from realtime_script import check_event, pcm, server_events
from talking import TalkingRecognizer, words_said
from websockets.sync.client import connect

from harken.api import Recognizer
from harken.audio import load_audio
from harken.serve.options import ServeOptions
from harken.streaming import FinalSegment
from real_models import EXAMPLE
from serving import Serving, serving

KEY = "the key"
INTENT = {"intent": "transcription"}
JFK = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
COMPLETED, DELTA = ".completed", ".delta"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server with a key, that hears a word in each tenth of a second."""
    options = ServeOptions(preload=False, api_key=(KEY,))
    with serving(lambda id: TalkingRecognizer(), options=options) as running:
        yield running


def configure(connection: Any, **audio_input: Any) -> None:
    connection.session.update(session={"type": "transcription", "audio": {"input": audio_input}})


def receive_until(connection: Any, type: str, *, beta: bool = False) -> list[dict[str, Any]]:
    """Receive events, each held to the client's types, up to one of a type."""
    events: list[dict[str, Any]] = []
    receive = getattr(connection, "recv_bytes", None) or connection.recv
    while not (events and events[-1]["type"].endswith(type)):
        events.append(json.loads(receive()))
        check_event(events[-1], beta=beta)
    return events


def transcript_of(events: list[dict[str, Any]]) -> str:
    """Return the transcripts, which may revise their deltas."""
    return " ".join(event["transcript"] for event in events if event["type"].endswith(COMPLETED))


def test_the_client_sends_audio_and_gets_words(server: Serving) -> None:
    with server.client(KEY).realtime.connect(extra_query=INTENT) as connection:
        configure(connection, turn_detection=None)
        connection.input_audio_buffer.append(audio=pcm(0.75))
        connection.input_audio_buffer.commit()
        events = receive_until(connection, "item.done")
    assert [event["type"] for event in events[:2]] == ["session.created", "session.updated"]
    assert events[-1]["item"]["content"][0]["transcript"] == transcript_of(events)
    assert re.findall(r"\w+", transcript_of(events)) == words_said(7).split()


def test_the_asynchronous_client_reads_typed_events(server: Serving) -> None:
    async def listen() -> list[Any]:
        given = {"base_url": f"{server.url}/v1", "websocket_base_url": f"{server.socket_url}/v1"}
        async with (
            AsyncOpenAI(api_key=KEY, **given) as client,
            client.realtime.connect(extra_query=INTENT) as connection,
        ):
            await connection.input_audio_buffer.append(audio=pcm(0.55))
            seen = [await connection.recv()]
            while seen[-1].type != "conversation.item.done":
                seen.append(await connection.recv())
            return seen

    events = asyncio.run(listen())
    types = server_events(False)
    assert all(isinstance(event, types[event.type]) for event in events)
    assert events[-1].item.content[0].transcript == words_said(5)


def test_a_short_lived_key_opens_sessions_with_its_configuration_and_makes_no_others(server: Serving) -> None:
    session = {"type": "transcription", "audio": {"input": {"transcription": {"language": "en"}}}}
    make = server.client(KEY).realtime.client_secrets.create
    ticket = make(session=session, expires_after={"anchor": "created_at", "seconds": 60})
    assert ticket.value.startswith("ek_")
    assert ticket.session.type == "transcription"
    with server.client(ticket.value).realtime.connect(extra_query=INTENT) as connection:
        (created,) = receive_until(connection, "session.created")
    assert created["session"]["audio"]["input"]["transcription"]["language"] == "en"
    with pytest.raises(PermissionDeniedError):
        server.client(ticket.value).realtime.client_secrets.create()
    for seconds in (9, 7201):
        with pytest.raises(BadRequestError, match="10 to 7200"):
            make(expires_after={"anchor": "created_at", "seconds": seconds})


@pytest.mark.parametrize("by_header", [True, False])
def test_the_beta_dialect_has_short_lived_keys_and_sessions_too(server: Serving, by_header: bool) -> None:
    sessions = server.client(KEY).beta.realtime.transcription_sessions
    expiry = {"expires_at": {"anchor": "created_at", "seconds": 30}}
    made = sessions.create(input_audio_format="g711_ulaw", client_secret=expiry)
    assert made.input_audio_format == "g711_ulaw"
    headers = {"Authorization": f"Bearer {made.client_secret.value}"}
    dialect: dict[str, Any] = {"subprotocols": ["realtime", "openai-beta.realtime-v1"]}
    if by_header:
        dialect, headers = {}, headers | {"OpenAI-Beta": "realtime=v1"}
    url = f"{server.socket_url}/v1/realtime?intent=transcription"
    with connect(url, proxy=None, additional_headers=headers, **dialect) as socket:
        session = {"input_audio_format": "pcm16", "input_audio_transcription": {"model": "whisper-1"}}
        socket.send(json.dumps({"type": "transcription_session.update", "session": session}))
        socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": pcm(0.55)}))
        created, updated, *events = receive_until(socket, COMPLETED, beta=True)
    assert created["type"] == "transcription_session.created"
    assert created["session"]["input_audio_format"] == "g711_ulaw"
    assert updated["type"] == "transcription_session.updated"
    assert transcript_of(events) == words_said(5)


FORMATS = {
    "audio/pcm": ("pcm_s16le", 24_000),
    "audio/pcmu": ("pcm_mulaw", 8_000),
    "audio/pcma": ("pcm_alaw", 8_000),
}


def speech_file(format: str, seconds: float) -> io.BytesIO:
    """Return the beginning of the example as a WAV file in a format, with some silence behind it."""
    codec, rate_hz = FORMATS[format]
    samples = np.append(load_audio(EXAMPLE)[: int(seconds * 16_000)], np.zeros(20_000, np.float32))
    frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
    frame.sample_rate = 16_000
    resampler = av.AudioResampler(format="s16", layout="mono", rate=rate_hz)
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        stream = container.add_stream(codec, rate=rate_hz, layout="mono")
        for resampled in [*resampler.resample(frame), *resampler.resample(None), None]:
            container.mux(stream.encode(resampled))
    file.seek(0)
    return file


def say(connection: Any, format: str, seconds: float, bytes_at_once: int) -> None:
    """Send the same as clients do."""
    with av.open(speech_file(format, seconds)) as container:
        audio = b"".join(map(bytes, container.demux()))
    for start in range(0, len(audio), bytes_at_once):
        block = audio[start : start + bytes_at_once]
        connection.input_audio_buffer.append(audio=b64encode(block).decode())


def plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z]+", text.lower()))


@pytest.mark.real
@pytest.mark.parametrize("format", FORMATS)
def test_real_speech_in_every_format_is_what_a_live_session_hears_in_a_file(
    unhurried_server: Serving, unhurried: Recognizer, format: str
) -> None:
    with unhurried_server.client().realtime.connect(extra_query=INTENT) as connection:
        configure(connection, format={"type": format}, turn_detection=None)
        say(connection, format, 3.5, 4_001)
        connection.input_audio_buffer.commit()
        heard = transcript_of(receive_until(connection, "item.done"))
    session = unhurried.stream()
    events = [*session.feed(load_audio(speech_file(format, 3.5))), *session.close()]
    assert heard == "".join(event.segment.text for event in events if isinstance(event, FinalSegment)).strip()
    assert {"and", "so", "fellow"} <= {*plain(heard).split()}


@pytest.mark.real
def test_turns_of_real_speech_are_detected(unhurried_server: Serving) -> None:
    with unhurried_server.client().realtime.connect(extra_query=INTENT) as connection:
        turns = {"type": "server_vad", "silence_duration_ms": 1200}
        configure(connection, turn_detection=turns, transcription={"delay": "high"})
        say(connection, "audio/pcm", 11, 4_800)
        events = receive_until(connection, "item.done")
    assert plain(transcript_of(events)) == JFK
    assert [event["type"].rsplit(".", 1)[-1] for event in events if not event["type"].endswith(DELTA)][2:] == [
        *("speech_started", "speech_stopped", "committed", "added", "completed", "done")
    ]

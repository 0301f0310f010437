"""The Wyoming protocol, spoken with by its own client; the words come from a script."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from talking import TalkingRecognizer, words_said

from harken.errors import OptionError
from harken.serve.live.wyoming import MAX_DATA_BYTES, MAX_PAYLOAD_BYTES, encode_event
from harken.serve.live.wyoming_server import WyomingServer, serve_wyoming
from harken.serve.options import ServeOptions
from harken.serve.service import Service

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of audioop, which it imports up to Python 3.12
    from wyoming.asr import Transcribe, Transcript
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncClient
    from wyoming.event import Event
    from wyoming.info import Describe, Info
    from wyoming.ping import Ping, Pong

FORMAT = {"rate": 16_000, "width": 2, "channels": 1}
WORD = bytes(3200)

Scenario = Callable[[Service, WyomingServer], Awaitable[None]]


def serve(scenario: Scenario, recognizer: Any = None, uri: str = "tcp://127.0.0.1:0") -> None:
    """Run a scenario beside a server."""
    recognizer = recognizer or TalkingRecognizer()

    async def run() -> None:
        service = Service(lambda id: recognizer, ["tiny.en", "tiny"], ServeOptions(), {})
        try:
            async with serve_wyoming(service, uri) as server:
                await asyncio.wait_for(scenario(service, server), 20)
        finally:
            await service.close()

    asyncio.run(run())


def talk(scenario: Callable[[AsyncClient, Service], Awaitable[None]], recognizer: Any = None) -> None:
    """Run a scenario with a client that is connected."""

    async def connected(service: Service, server: WyomingServer) -> None:
        async with AsyncClient.from_uri(server.uri) as client:
            await scenario(client, service)

    serve(connected, recognizer)


async def speak(client: AsyncClient, n_words: int, **transcribe: Any) -> None:
    if transcribe:
        await client.write_event(Transcribe(**transcribe).event())
        await client.write_event(AudioStart(**FORMAT).event())
    for _ in range(n_words):
        await client.write_event(AudioChunk(**FORMAT, audio=WORD).event())
    await client.write_event(AudioStop().event())


async def reply(client: AsyncClient) -> Event:
    event = await client.read_event()
    assert event
    return event


async def answer(client: AsyncClient) -> list[Event]:
    """Read up to the end of a transcript, or of the connection."""
    events = []
    while event := await client.read_event():
        events.append(event)
        if event.type == "transcript-stop":
            break
    return events


async def transcript(client: AsyncClient) -> str:
    """Return the transcript, and check what surrounds it."""
    start, *chunks, whole, stop = await answer(client)
    assert (start.type, stop.type) == ("transcript-start", "transcript-stop")
    assert {chunk.type for chunk in chunks} <= {"transcript-chunk"}
    text = Transcript.from_event(whole).text
    assert "".join(chunk.data["text"] for chunk in chunks) == text
    return text


def test_a_description_has_all_models_and_their_languages() -> None:
    async def scenario(client: AsyncClient, service: Service) -> None:
        await client.write_event(Describe().event())
        (program,) = Info.from_event(await reply(client)).asr
        assert program.name == "harken"
        assert program.supports_transcript_streaming
        assert program.requires_external_vad
        assert program.models[0].languages == ["en"]
        assert len(program.models[1].languages) > 90

        await service.preload()
        await client.write_event(Describe().event())
        (program,) = Info.from_event(await reply(client)).asr
        assert [model.languages for model in program.models] == [["en"], ["en"]]
        await client.write_event(Ping(text="here?").event())
        assert Pong.from_event(await reply(client)).text == "here?"

    talk(scenario)


def test_utterances_follow_one_another_on_a_connection() -> None:
    recognizer = TalkingRecognizer()
    asked = {"name": "tiny.en", "language": "en-US", "transcript_names": ["Ada"], "transcript_terms": ["lamp"]}

    async def scenario(client: AsyncClient, service: Service) -> None:
        await speak(client, 7, **asked)
        assert await transcript(client) == words_said(7)
        for n_words in (2, 1, 0):
            await speak(client, n_words)
            assert await transcript(client) == words_said(n_words)
        assert service.admission.n_streams == 0

    talk(scenario, recognizer)
    assert recognizer.options[0].language == "en"
    assert recognizer.options[0].hotwords == ("Ada", "lamp")


def test_languages_of_home_assistant_are_known() -> None:
    recognizer = TalkingRecognizer(languages=("en", "no", "pt", "tl"))

    async def scenario(client: AsyncClient, service: Service) -> None:
        for given, language in (
            *(("en-GB", "en"), ("nb-NO", "no"), ("pt_BR", "pt"), ("fil", "tl")),
            *(("auto", None), (None, None)),
        ):
            await speak(client, 1, name="tiny", language=given)
            assert await transcript(client) == words_said(1)
            assert recognizer.options[-1].language == language

    talk(scenario, recognizer)


def test_a_refused_request_is_told_and_may_be_corrected() -> None:
    async def scenario(service: Service, server: WyomingServer) -> None:
        for request_data, problem in (
            ({"name": "large"}, "large"),
            ({"language": "tlh"}, "tlh"),
            ({"name": 3}, "name"),
            ({"transcript_terms": "lamp"}, "transcript_terms"),
        ):
            async with AsyncClient.from_uri(server.uri) as client:
                await client.write_event(Event("transcribe", request_data))
                error = await reply(client)
                assert error.type == "error"
                assert problem in error.data["text"]
                assert "\n" not in error.data["text"]
                await speak(client, 1, name="tiny.en")
                assert await transcript(client) == words_said(1)

                await client.write_event(Event("transcribe", request_data))
                await speak(
                    client, 3
                )  # Home Assistant does not look at errors, but at the end of the connection
                assert [event.type for event in await answer(client)] == ["error"]

    serve(scenario)


def test_audio_of_another_format_is_refused() -> None:
    async def scenario(service: Service, server: WyomingServer) -> None:
        for format, problem in (
            (FORMAT | {"width": 3}, "width=3"),
            (FORMAT | {"rate": 10}, "rate=10"),
            (FORMAT | {"channels": 0}, "channels=0"),
            ({"rate": 16_000}, "width"),
        ):
            async with AsyncClient.from_uri(server.uri) as client:
                for event in (*[Event("audio-chunk", format, WORD)] * 2, AudioStop().event()):
                    await client.write_event(event)
                (error,) = await answer(client)
                assert problem in error.data["text"]

    serve(scenario)


@pytest.mark.parametrize(("width", "dtype"), [(1, "u1"), (2, "<i2"), (4, "<i4")])
def test_samples_of_any_width_and_rate_are_heard_alike(width: int, dtype: str) -> None:
    recognizer = TalkingRecognizer()
    top = 2 ** (8 * width - 1)
    tone = 0.5 * np.sin(np.arange(48_000) * 0.05) * top + (top if width == 1 else 0)
    data = np.repeat(tone.astype(dtype), 2).tobytes()  # two channels
    format = {"rate": 48_000, "width": width, "channels": 2}

    async def scenario(client: AsyncClient, service: Service) -> None:
        for start in range(0, len(data), 100_001):
            await client.write_event(AudioChunk(**format, audio=data[start : start + 100_001]).event())
        await client.write_event(AudioStop().event())
        await transcript(client)

    talk(scenario, recognizer)
    heard = recognizer.sessions[-1].samples
    assert abs(len(heard) - 16_000) < 80
    assert np.std(heard[1000:-1000]) == pytest.approx(0.3535, abs=0.01)


async def connect(server: WyomingServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.uri.removeprefix("tcp://").split(":")
    return await asyncio.open_connection(host, int(port))


def test_frames_may_be_cut_anywhere_and_have_their_data_inline() -> None:
    frames = (
        json.dumps({"type": "audio-start", "data": FORMAT}).encode() + b"\n",
        json.dumps({"type": "audio-chunk", "data": FORMAT, "payload_length": len(WORD)}).encode()
        + b"\n"
        + WORD,
        json.dumps({"type": "audio-stop", "data": None, "version": "9", "data_length": 2}).encode() + b"\n{}",
        b'{"type": "new-event-of-a-later-version", "payload_length": 3}\nabc',
        b'{"type": "ping", "data": {"text": "\\ud800"}}\n',
        b'{"type": "describe"}\n',
    )

    async def scenario(service: Service, server: WyomingServer) -> None:
        reader, writer = await connect(server)
        for byte in b"".join(frames):
            writer.write(bytes([byte]))
            await writer.drain()
        answered = b""
        while b'"info"' not in answered:
            answered += await reader.read(1 << 16)
        assert b'{"text": "word0", "language": "en"}' in answered
        assert b'{"text": "\\ud800"}' in answered
        writer.close()

    serve(scenario)


BAD_FRAMES = (
    b"\n",
    b"[]\n",
    b"[" * 5000 + b"\n",
    b'{"type": 3}\n',
    b'{"type": "ping", "data": 3}\n',
    b'{"type": "ping", "data_length": -1}\n',
    b'{"type": "ping", "data_length": 2}\n[]',
    b'{"type": "ping", "data_length": "2"}\n{}',
    b'{"type": "ping", "data_length": %d}\n' % (MAX_DATA_BYTES + 1),
    b'{"type": "audio-chunk", "payload_length": %d}\n' % (MAX_PAYLOAD_BYTES + 1),
    b'{"type": "audio-chunk", "payload_length": 1e999}\n',
    b'{"type": "audio-chunk", "payload_length": %s}\n' % (b"9" * 5000),
    b"x" * 200_000,
    b"\xff\xfe\n",
)


def test_a_malformed_or_huge_frame_ends_the_connection_in_a_line() -> None:
    async def scenario(service: Service, server: WyomingServer) -> None:
        for frame in BAD_FRAMES:
            reader, writer = await connect(server)
            writer.write(frame)
            *_, code = (await reader.read()).splitlines()
            assert b"invalid_frame" in code, frame[:48]
            writer.close()

    serve(scenario)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no Unix sockets")
def test_a_unix_socket_is_served_and_not_taken_from_a_server_that_lives(tmp_path: Path) -> None:
    path = tmp_path / "harken.sock"

    async def scenario(service: Service, server: WyomingServer) -> None:
        async with AsyncClient.from_uri(server.uri) as client:
            await speak(client, 2)
            assert await transcript(client) == words_said(2)
        with pytest.raises(OptionError, match=r"wyoming=.*in use"):
            async with serve_wyoming(service, server.uri):
                pass

    serve(scenario, uri=f"unix://{path}")
    assert not path.exists()


@pytest.mark.parametrize(
    "uri", ["", "tcp://", "tcp://127.0.0.1", "tcp://h:x", "http://a:1", "unix://", "unix://a"]
)
def test_an_address_of_another_form_is_refused(uri: str) -> None:
    async def nothing(service: Service, server: WyomingServer) -> None:
        return

    with pytest.raises(OptionError, match="wyoming="):
        serve(nothing, uri=uri)


def test_frames_are_those_of_the_package() -> None:
    assert encode_event("transcript-stop", {}) == b'{"type": "transcript-stop"}\n'
    line, data = encode_event("transcript", {"text": "Grüße\n"}).split(b"\n", 1)
    assert json.loads(line)["data_length"] == len(data)
    assert json.loads(data) == {"text": "Grüße\n"}

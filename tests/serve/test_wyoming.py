"""The Wyoming protocol, spoken with by its own client; the words come from a script."""

import asyncio
import json
import sys
import warnings
from contextlib import asynccontextmanager

import numpy as np
import pytest
from clients import played

from fakes.live_sessions import words_said
from harken.errors import OptionError
from harken.serve.live.wyoming import MAX_DATA_BYTES, MAX_PAYLOAD_BYTES, serve_wyoming

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
TCP = "tcp://127.0.0.1:0"


def served(stage, uri):
    return serve_wyoming(stage.service, uri, on_end=lambda: None)


@asynccontextmanager
async def connected(stage, uri=TCP):
    """Serve the protocol, and connect to it."""
    async with served(stage, uri) as address, AsyncClient.from_uri(address) as client:
        yield client


@asynccontextmanager
async def raw(stage):
    """Do the same without a client that knows the protocol."""
    async with served(stage, TCP) as address:
        host, port = address.removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.close()


async def send(client, *told):
    for each in told:
        await client.write_event(each if isinstance(each, Event) else each.event())


async def speak(client, n_words, **transcribe):
    begin = (Transcribe(**transcribe), AudioStart(**FORMAT)) if transcribe else ()
    await send(client, *begin, *[AudioChunk(**FORMAT, audio=WORD)] * n_words, AudioStop())


async def answer(client):
    """Read up to the end of a transcript, or of the connection."""
    events = []
    while event := await client.read_event():
        events.append(event)
        if event.type == "transcript-stop":
            break
    return events


async def transcript(client):
    """Return the transcript, and check what surrounds it."""
    start, *chunks, whole, stop = await answer(client)
    assert (start.type, stop.type) == ("transcript-start", "transcript-stop")
    assert {chunk.type for chunk in chunks} <= {"transcript-chunk"}
    text = Transcript.from_event(whole).text
    assert "".join(chunk.data["text"] for chunk in chunks) == text
    return text


@played()
async def test_a_description_has_all_models_and_their_languages(stage):
    async with connected(stage) as client:
        await send(client, Describe())
        (program,) = Info.from_event(await client.read_event()).asr
        assert program.name == "harken"
        assert program.supports_transcript_streaming
        assert program.requires_external_vad
        assert program.models[0].languages == ["en"]
        assert len(program.models[1].languages) > 90

        await stage.service.preload()
        await send(client, Describe())
        (program,) = Info.from_event(await client.read_event()).asr
        assert [model.languages for model in program.models] == [["en"], ["en"]]
        await send(client, Ping(text="here?"))
        assert Pong.from_event(await client.read_event()).text == "here?"


@played()
async def test_utterances_follow_one_another_on_a_connection(stage):
    asked = {"name": "tiny.en", "language": "en-US", "transcript_names": ["Ada"], "transcript_terms": ["lamp"]}
    async with connected(stage) as client:
        await speak(client, 7, **asked)
        assert await transcript(client) == words_said(7)
        for n_words in (2, 1, 0):
            await speak(client, n_words)
            assert await transcript(client) == words_said(n_words)
        assert stage.service.admission.n_streams == 0
    options = stage.model.options[0]
    assert (options.language, options.hotwords) == ("en", ("Ada", "lamp"))


@played()
async def test_a_refused_request_is_told_and_may_be_corrected(stage):
    for request_data, problem in (
        ({"name": "large"}, "large"),
        ({"language": "tlh"}, "tlh"),
        ({"name": 3}, "name"),
        ({"transcript_terms": "lamp"}, "transcript_terms"),
    ):
        async with connected(stage) as client:
            await send(client, Event("transcribe", request_data))
            error = await client.read_event()
            assert error.type == "error"
            assert problem in error.data["text"]
            assert "\n" not in error.data["text"]
            await speak(client, 1, name="tiny.en")
            assert await transcript(client) == words_said(1)

            await send(client, Event("transcribe", request_data))
            await speak(client, 3)  # Home Assistant looks at the end of the connection, not at errors
            assert [event.type for event in await answer(client)] == ["error"]


@played()
async def test_audio_of_another_format_is_refused(stage):
    for format, problem in (
        (FORMAT | {"width": 3}, "width=3"),
        (FORMAT | {"rate": 10}, "rate=10"),
        (FORMAT | {"channels": 0}, "channels=0"),
        ({"rate": 16_000}, "width"),
    ):
        for before in ((), (AudioChunk(**FORMAT, audio=WORD),)):
            async with connected(stage) as client:
                await send(client, *before, *[Event("audio-chunk", format, WORD)] * 2, AudioStop())
                (error,) = await answer(client)
                assert problem in error.data["text"]


@pytest.mark.parametrize(("width", "dtype"), [(1, "u1"), (2, "<i2"), (4, "<i4")])
@played()
async def test_samples_of_any_width_and_rate_are_heard_alike(stage, width, dtype):
    top = 2 ** (8 * width - 1)
    tone = 0.5 * np.sin(np.arange(48_000) * 0.05) * top + (top if width == 1 else 0)
    data = np.repeat(tone.astype(dtype), 2).tobytes()  # two channels
    format = {"rate": 48_000, "width": width, "channels": 2}
    async with connected(stage) as client:
        blocks = [data[start : start + 100_001] for start in range(0, len(data), 100_001)]
        await send(client, *(AudioChunk(**format, audio=block) for block in blocks), AudioStop())
        await transcript(client)
    heard = stage.model.sessions[-1].samples
    assert abs(len(heard) - 16_000) < 80
    assert np.std(heard[1000:-1000]) == pytest.approx(0.3535, abs=0.01)


@played()
async def test_frames_may_be_cut_anywhere_and_have_their_data_inline(stage):
    chunk = {"type": "audio-chunk", "data": FORMAT, "payload_length": len(WORD)}
    frames = (
        json.dumps({"type": "audio-start", "data": FORMAT}).encode() + b"\n",
        json.dumps(chunk).encode() + b"\n" + WORD,
        json.dumps({"type": "audio-stop", "data": None, "version": "9", "data_length": 2}).encode() + b"\n{}",
        b'{"type": "new-event-of-a-later-version", "payload_length": 3}\nabc',
        b'{"type": "ping", "data": {"text": "\\ud800"}}\n',
        b'{"type": "describe"}\n',
    )
    async with raw(stage) as (reader, writer):
        for byte in b"".join(frames):
            writer.write(bytes([byte]))
            await writer.drain()
        answered = b""
        while b'"info"' not in answered:
            answered += await reader.read(1 << 16)
    assert b'{"text": "word0", "language": "en"}' in answered
    assert b'{"text": "\\ud800"}' in answered


BYTES_BEHIND = 1 << 23
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


@played()
async def test_a_malformed_or_huge_frame_ends_the_connection_in_a_line_whatever_is_sent_behind_it(stage):
    for frame in BAD_FRAMES:
        async with raw(stage) as (reader, writer):
            writer.write(frame + bytes(BYTES_BEHIND))
            await writer.drain()
            assert b"invalid_frame" in await reader.read(), frame[:48]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no Unix sockets")
@played()
async def test_a_unix_socket_is_served_and_not_taken_from_a_server_that_lives(stage, tmp_path):
    path = tmp_path / "harken.sock"
    async with connected(stage, f"unix://{path}") as client:
        await speak(client, 2)
        assert await transcript(client) == words_said(2)
        with pytest.raises(OptionError, match=r"wyoming=.*in use"):
            await served(stage, f"unix://{path}").__aenter__()
    assert not path.exists()


@played()
async def test_an_address_of_another_form_is_refused(stage):
    for uri in ("", "tcp://", "tcp://127.0.0.1", "tcp://h:x", "http://a:1", "unix://", "unix://a"):
        with pytest.raises(OptionError, match="wyoming="):
            await served(stage, uri).__aenter__()

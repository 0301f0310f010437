"""The own WebSocket: its messages, streams that outlast a connection, and what clients may send."""

import json
import threading

import numpy as np
import pytest
from clients import OwnClient, played, until
from hypothesis import example, given, settings
from hypothesis import strategies as st
from leaping import leap
from served_audio import wav, webm

from fakes.live_sessions import words_said
from harken.serve.live.audio import AudioPipe

BLOCK = bytes(3200)  # a tenth of a second: one word
TONE = (0.25 * np.sin(np.arange(48_000) * 0.05)).astype(np.float32)
CONTAINER = {"format": "container"}


def send_all(client, data, n_bytes=3200):
    for start in range(0, len(data), n_bytes):
        client.send(data[start : start + n_bytes])


async def streamed(stage, data, n_bytes=3200, **first):
    """Return a client that has sent a whole stream, and its end."""
    client = await stage.connect(OwnClient, **first)
    send_all(client, data, n_bytes)
    client.finish()
    return client, await client.closed()


def events(messages):
    """Return the events but interims, without what depends on the machine."""
    left_out = ("seq", "compute_s", "emitted_s")
    return [
        {key: value for key, value in message.items() if key not in left_out}
        for message in messages
        if message.get("event") in ("speech_started", "final_segment", "speech_ended")
    ]


@played()
async def test_events_come_numbered_and_the_stream_ends_with_done_and_hears_nothing_more(stage):
    client = await stage.connect(OwnClient)
    ready = client.messages[0]
    assert (ready["received"], ready["seq"], ready["model"]) == (0, 0, "tiny.en")
    assert (ready["delay"], ready["bound_ms"]) == ("low", 1001)
    for _ in range(2):
        client.say(7)
        client.finish()
    assert await client.closed() == 1000
    assert client.text == words_said(7)
    numbers = [message["seq"] for message in client.messages if "event" in message]
    assert numbers == sorted(set(numbers))
    assert client.messages[-1] == {"type": "done", "seq": numbers[-1]}
    assert client.messages[1]["event"] == "speech_started"


@played(gate_from=0)
async def test_a_flush_is_answered_behind_its_events_and_a_ping_while_the_server_works(stage):
    client = await stage.connect(OwnClient, says=2)
    for message in ("flush", "ping", "flush"):
        client.send({"type": message})
    await client.came(type="pong")
    stage.gate.open.set()
    await until(lambda: [message.get("type") for message in client.messages].count("flushed") == 2)
    ended, first, second = client.messages[-3:]
    assert ended["reason"] == "flush"
    assert ended["seq"] < first["seq"] < second["seq"]


@played(idle_s=100)
async def test_pings_keep_a_silent_connection_open(stage):
    client = await stage.connect(OwnClient)
    for n_pings in range(1, 4):
        await leap(60)
        client.send({"type": "ping"})
        await until(lambda n=n_pings: [message["type"] for message in client.messages].count("pong") == n)
    await leap(101)
    assert await client.closed() == 1008


@played()
async def test_a_wrong_first_message_is_refused_in_a_line(stage):
    for first, param in (
        ({"type": "hi"}, "type"),
        ({"delay": "soon"}, "delay"),
        ({"words": "yes"}, "words"),
        ({"prompt": 3}, "prompt"),
        ({"beam_size": 64}, "beam_size"),
        ({"language": "de"}, "language"),
        ({"model": "large"}, "model"),
        ({"audio": []}, "audio"),
        ({"audio": {"format": "mp3"}}, "format"),
        ({"audio": {"rate": 7_999}}, "rate"),
        ({"audio": {"channels": 3}}, "channels"),
        ({"type": "resume", "session": "x"}, "token"),
        ({"type": "resume", "session": "x", "token": "\ud800"}, "token"),
        ({"\ud800": 1}, r"\ud800"),
        ({"type": "resume", "session": "x", "token": "y"}, "session"),
    ):
        client = await stage.connect(OwnClient, **first)
        assert await client.closed() == 1008
        (error,) = client.messages
        code = {"model": "model_not_found", "session": "session_not_found"}.get(param, "invalid_value")
        assert (error["type"], error["code"], error["param"]) == ("error", code, param)
        assert param in error["message"]
        assert "\n" not in error["message"]


@pytest.mark.parametrize(("n_sent", "n_seen"), [(3_200, 1), (9_601, 3), (16_000, 2), (19_999, 8), (35_200, 4)])
@played(resume_s=30)
async def test_a_resumed_session_loses_and_doubles_nothing(stage, n_sent, n_seen):
    data = BLOCK * 13
    client = await stage.connect(OwnClient)
    send_all(client, data[:n_sent], 3_001)
    await client.came(event="interim", audio_s=n_sent // 3200 / 10)
    client.vanish()
    await client.closed()
    seen = client.messages[: n_seen + 1]
    again = await client.resumed(seen[-1]["seq"])
    assert again.messages[0]["received"] == n_sent
    send_all(again, data[n_sent:])
    again.finish()
    assert await again.closed() == 1000
    once_more = await client.resumed(seen[-1]["seq"])  # as if that connection had been lost, too
    assert await once_more.closed() == 1000
    assert once_more.messages[0]["ended"]

    whole, _ = await streamed(stage, data)
    for resumed in (again, once_more):
        assert events(seen + resumed.messages) == events(whole.messages)
        assert resumed.messages[-1]["type"] == "done"


@played(resume_s=30)
async def test_acknowledged_messages_are_not_kept(stage):
    client = await stage.connect(OwnClient, says=5)
    seq = (await client.came(event="speech_ended"))["seq"]
    client.send({"type": "ack", "seq": seq})
    client.send({"type": "ping"})
    await client.came(type="pong")
    late = await client.resumed(0)
    assert late.errors == ["messages_not_kept"]
    assert f"allowed is {seq} to {seq}" in late.messages[0]["message"]
    assert (await client.resumed(seq)).messages[0]["type"] == "ready"


@played(resume_s=30)
async def test_a_second_connection_takes_a_session_over_if_it_has_the_token(stage):
    client = await stage.connect(OwnClient)
    session = client.messages[0]["session"]
    stranger = await stage.connect(OwnClient, type="resume", session=session, token="guess")
    assert await stranger.closed() == 1008
    late = await client.resumed(99)
    assert (await late.closed(), late.errors) == (1008, ["messages_not_kept"])
    client.say(5)
    await client.came(event="final_segment")
    other = await client.resumed(0)
    assert await client.closed() == 1008
    assert client.errors == ["taken_over"]
    other.say(5)
    await until(lambda: len(events(other.messages)) == 6)


@played(max_streams=2)
async def test_of_those_who_said_no_more_than_hello_few_are_kept(stage):
    vanished = [await stage.connect(OwnClient) for _ in range(4)]
    for client in vanished:
        client.vanish()
        await until(client.serving.done)
    await stage.connect(OwnClient)
    resumed = [await client.resumed(0) for client in vanished]
    assert [client.errors for client in resumed] == [["session_not_found"]] * 2 + [[]] * 2


@played()
async def test_the_options_of_a_hello_reach_the_model(stage):
    hello = {"language": "en-US", "hotwords": ["Ada"], "prompt": "Names:", "words": True, "finals": "streamed"}
    audio, data = {"format": "f32le", "rate": 48_000}, TONE[:24_000].astype("<f4").tobytes()
    _, code = await streamed(stage, data, 4_001, audio=audio, pause_s=2, **hello)
    assert code == 1000
    options = stage.model.options[-1]
    assert (options.hotwords, options.initial_prompt, options.word_timestamps) == (("Ada",), "Names:", True)
    heard = stage.model.sessions[-1].samples
    assert abs(len(heard) - 8000) < 80
    assert np.std(heard[1000:7000]) == pytest.approx(np.std(TONE), rel=0.02)


@pytest.mark.parametrize("n_bytes", [7, 333, 1 << 20])
@played()
async def test_a_container_may_be_cut_anywhere(stage, n_bytes):
    data = wav(TONE[:4000])
    client, code = await streamed(stage, data, n_bytes, audio=CONTAINER)
    assert (client.text, code) == (words_said(2), 1000)
    assert (stage.model.sessions[-1].samples * 32768).astype("<i2").tobytes() == data[44:]


@played()
async def test_a_flush_comes_behind_all_that_can_be_decoded_of_a_container(stage):
    data = webm(TONE[:32_000])
    client = await stage.connect(OwnClient, audio=CONTAINER)
    send_all(client, data[: len(data) // 2], 100)
    client.send({"type": "flush"})
    await client.came(type="flushed")
    last = events(client.messages)[-1]
    assert last["reason"] == "flush"
    assert 0.4 < last["audio_s"] <= 1.1
    send_all(client, data[len(data) // 2 :])
    client.finish()
    assert await client.closed() == 1000
    assert abs(len(stage.model.sessions[-1].samples) - 32_000) < 1000


@pytest.mark.parametrize(
    ("data", "n_words", "problem"),
    [(b"this is no recording" * 1000, 0, ""), (wav(TONE, n_bytes=20_000), 6, "cut short")],
)
@played()
async def test_a_bad_recording_gives_its_words_and_then_an_error(stage, data, n_words, problem):
    client, code = await streamed(stage, data, audio=CONTAINER)
    assert (client.text, client.errors, code) == (words_said(n_words), ["invalid_audio"], 1008)
    message = client.messages[-1]["message"]
    assert client.messages[-1]["param"] == "audio"
    assert problem in message
    assert "\n" not in message


@played(resume_s=0)
async def test_a_container_that_is_left_frees_its_thread(stage):
    data = webm(TONE)
    client = await stage.connect(OwnClient, audio=CONTAINER)
    send_all(client, data[: len(data) // 2])
    await client.came(event="speech_started")
    client.vanish()
    await until(lambda: not any(each.name == "harken container" for each in threading.enumerate()))


@played()
async def test_what_comes_behind_the_end_of_a_container_is_not_kept(stage):
    pipe = AudioPipe()
    await pipe.write(b"audio")
    pipe.close()
    await pipe.write(b"more")
    assert (pipe.read(100), pipe.read(100)) == (b"audio", b"")


TYPES = st.sampled_from(["hello", "resume", "flush", "end", "ping", "ack"])
FIELDS = ("type", "seq", "model", "delay", "audio", "words", "hotwords", "pause_s", "session", "token")
VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=5) | TYPES
MESSAGES = st.one_of(
    st.binary(max_size=50),
    st.text(max_size=20),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4).map(json.dumps),
    TYPES.map(lambda type: json.dumps({"type": type, "seq": 1} if type == "ack" else {"type": type})),
)


@settings(max_examples=12, deadline=None)
@example(hello=True, messages=['{"type": "end"}'])  # and is closed before the last message is read
@given(hello=st.booleans(), messages=st.lists(MESSAGES, max_size=5))
@played()
async def test_whatever_comes_is_answered_with_a_code_of_the_protocol(stage, hello, messages):
    client = OwnClient(stage)
    for message in [*['{"type": "hello"}'] * hello, *messages, "{"]:
        client.send(message)
    assert await client.closed() in (1000, 1008)
    assert all("event" in message or "type" in message for message in client.messages)


@played(replace=("harkin = harken",))
async def test_what_the_server_replaces_is_for_requests_that_replace_nothing(stage):
    for hello in ({}, {"replace": ["word = sound"]}):
        client = await stage.connect(OwnClient, **hello, says=1, ends=True)
        await client.closed()
    assert {options.replace for options in stage.model.options} == {("harkin = harken",), ("word = sound",)}

"""What clients of all live protocols can rely on: equal texts, limits, an orderly end, and nothing that is left."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import pytest
from leaping import leap, settled
from live_clients import Client, OwnClient, RealtimeClient, Stage, WyomingClient, play, until
from talking import TalkingRecognizer, words_said

from harken.serve.live.connection import MAX_UNSENT
from harken.serve.work.live_job import MAX_EVENTS, MAX_PENDING_S

LIMIT_S = 100.0
WAIT_S = 60.0
"""Longest wait of a thread; only a failure takes as long."""


@pytest.fixture(params=[OwnClient, RealtimeClient, WyomingClient])
def protocol(request: pytest.FixtureRequest) -> type[Client]:
    return request.param


def by(protocol: type[Client], own: Any, realtime: Any, wyoming: Any) -> Any:
    """Return what is expected of a protocol."""
    return {OwnClient: own, RealtimeClient: realtime, WyomingClient: wyoming}[protocol]


async def closed(client: Client) -> tuple[list[str | None], int | None]:
    """Wait until the server has closed the connection; return the errors that came, and the code."""
    await until(client.serving.done)
    return client.errors, client.close_code


def test_what_is_said_comes_back(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.say(12)
        client.finish()
        await until(lambda: client.text == words_said(12))
        assert client.errors == []

    play(scene)


def test_who_has_not_spoken_holds_no_slot(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        silent = [await stage.connect(protocol) for _ in range(3)]
        silent[0].vanish()
        await settled()
        assert stage.n_streams == 0
        speaker = await stage.connect(protocol)
        speaker.say(6)
        await until(lambda: speaker.text == words_said(5))
        assert stage.n_streams == 1

    play(scene, max_streams=1)


def test_a_client_that_vanishes_frees_its_slot(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.say(7)
        await until(lambda: client.text)
        assert stage.n_streams == 1
        client.vanish()
        await until(client.serving.done)
        if protocol.resumable:
            await leap(29)
            assert stage.n_streams == 1
            await leap(2)
        await until(lambda: stage.n_streams == 0)
        assert client.errors == []

    play(scene, resume_s=30)


def test_a_server_without_room_says_so(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        speaker = await stage.connect(protocol)
        speaker.say(6)
        await until(lambda: stage.n_streams == 1)
        other = await stage.connect(protocol)
        other.say(1)
        other.finish()
        assert await closed(other) == (["server_busy"], by(protocol, 1013, 1013, 0))

    play(scene, max_streams=1)


def test_a_sender_that_is_too_fast_waits_and_loses_nothing(protocol: type[Client]) -> None:
    go_on = Event()

    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.say(600)  # 60 messages
        await until(lambda: client.unread.qsize() < 60)
        await leap(LIMIT_S / 2)  # is not idle: its messages wait for the server
        assert client.unread.qsize() > 60 - MAX_PENDING_S - 5
        assert client.errors == []
        go_on.set()
        client.finish()
        await until(lambda: client.text == words_said(600))

    play(scene, TalkingRecognizer(lambda samples: go_on.wait(WAIT_S)), idle_s=LIMIT_S / 10)


def test_a_slow_reader_costs_no_memory_and_loses_nothing(protocol: type[Client]) -> None:
    fed: list[int] = []

    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.reads.clear()
        client.say(1200)
        other = await stage.connect(protocol)
        other.say(200)
        other.finish()
        await until(lambda: other.text == words_said(200))  # in which the engine would have gone on
        if protocol is not OwnClient:  # which keeps some megabytes of messages
            assert max(fed) < (MAX_EVENTS + MAX_UNSENT) * 16_000
            assert client.unread.qsize() > 120 - MAX_EVENTS - MAX_UNSENT
        client.reads.set()
        client.finish()
        await until(lambda: client.text == words_said(1200))

    play(scene, TalkingRecognizer(fed.append))


def test_a_reader_that_takes_nothing_is_given_up(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.reads.clear()
        client.say(30)
        await until(lambda: stage.n_streams == 1)
        while not client.serving.done():  # the limit begins with the first message for it
            await leap(1)

    play(scene)


def test_a_silent_connection_is_closed_with_what_was_said(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        await leap(LIMIT_S - 1)
        assert not client.serving.done()
        client.say(7)
        await until(lambda: client.text)
        await leap(LIMIT_S - 1)
        assert not client.serving.done()
        await leap(2)
        errors, code = await closed(client)
        assert (errors, code) == by(protocol, (["idle"], 1008), (["idle_timeout"], 1000), ([], 0))
        if protocol is RealtimeClient:
            assert client.text == words_said(7)

    play(scene, idle_s=LIMIT_S)


def test_a_connection_that_never_says_anything_is_closed(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        client = protocol(stage)
        await leap(LIMIT_S + 1)
        await until(client.serving.done)

    play(scene, idle_s=LIMIT_S)


def test_who_waits_for_the_server_is_not_idle(protocol: type[Client]) -> None:
    go_on = Event()

    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.say(3)
        client.finish()
        await until(lambda: client.unread.empty())
        await leap(3 * LIMIT_S)
        go_on.set()
        await until(lambda: client.text == words_said(3))
        assert client.errors == []

    play(scene, TalkingRecognizer(lambda samples: go_on.wait(WAIT_S)), idle_s=LIMIT_S)


@pytest.mark.parametrize("protocol", [OwnClient, RealtimeClient], indirect=True)
def test_a_session_that_has_lasted_as_long_as_it_may_ends_with_its_finals(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.say(7)
        await until(lambda: client.text)
        await leap(LIMIT_S + 1)
        outcome = by(protocol, (["session_limit"], 1008), (["session_expired"], 1000), None)
        assert await closed(client) == outcome
        assert client.text == words_said(7)

    play(scene, session_limit_s=LIMIT_S, idle_s=10 * LIMIT_S)


@pytest.mark.parametrize("protocol", [OwnClient, WyomingClient], indirect=True)
def test_audio_that_is_longer_than_allowed_is_refused(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.say(int(10 * LIMIT_S) + 1)
        client.finish()
        assert await closed(client) == (["session_limit"], by(protocol, 1008, None, 0))

    play(scene, session_limit_s=LIMIT_S)


def test_the_end_of_the_server_brings_the_last_words(protocol: type[Client]) -> None:
    async def scene(stage: Stage) -> None:
        silent, client = await stage.connect(protocol), await stage.connect(protocol)
        client.say(7)
        await until(lambda: client.text)
        await stage.service.drain()
        outcome = by(protocol, (["draining"], 1012), (["draining"], 1012), ([], 0))
        assert (await closed(silent), await closed(client)) == (outcome, outcome)
        assert client.text == words_said(7)

    play(scene)


def test_a_mistake_of_the_server_is_told_without_its_words(
    protocol: type[Client], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(samples: int) -> None:
        raise ArithmeticError("what was said in private")

    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.say(1)
        client.finish()
        assert await closed(client) == (["internal_error"], by(protocol, 1011, 1011, 0))
        assert "private" not in json.dumps(client.messages)

    play(scene, TalkingRecognizer(fail))
    assert "ArithmeticError" in caplog.text


FRAME = b'{"type": "audio-chunk", "payload_length": 99999999}\n'


@pytest.mark.parametrize("kind", ["malformed", "unknown", "too large"])
def test_a_bad_message_is_answered_in_a_line(protocol: type[Client], kind: str) -> None:
    message, outcome = by(
        protocol,
        {
            "malformed": ("[" * 9_999, (["invalid_json"], 1008)),
            "unknown": ('{"type": "say"}', (["invalid_value"], 1008)),
            "too large": (bytes(1 << 21), (["message_too_big"], 1009)),
        },
        {
            "malformed": ("[" * 9_999, (["invalid_json"], None)),
            "unknown": ('{"type": "say"}', (["invalid_value"], None)),
            "too large": (" " * (16 << 20), ([], 1009)),
        },
        {
            "malformed": (b"[" * 9_999 + b"\n", (["invalid_frame"], 0)),
            "unknown": (b'{"type": "say"}\n', ([], None)),
            "too large": (FRAME, (["invalid_frame"], 0)),
        },
    )[kind]

    async def scene(stage: Stage) -> None:
        client = await stage.connect(protocol)
        client.send(message)
        await until(lambda: (client.errors, client.close_code) == outcome)
        if client.close_code is None:  # it goes on
            client.say(6)
            await until(lambda: client.text == words_said(5))
        else:
            await until(client.serving.done)

    play(scene)


def test_a_client_that_only_stops_sending_still_gets_its_transcript() -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(WyomingClient)
        client.say(7)
        client.finish()
        client.vanish()
        await until(client.serving.done)
        assert client.text == words_said(7)

    play(scene)


def test_other_options_take_another_stream_and_lose_no_word() -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(RealtimeClient)
        client.send_audio(0.35)
        transcription = {"prompt": "Names."}
        client.send(
            {"type": "session.update", "session": {"audio": {"input": {"transcription": transcription}}}}
        )
        client.send_audio(0.25)
        client.finish()
        await until(lambda: client.text == f"{words_said(3)} {words_said(2)}")
        assert stage.n_streams == 1

    play(scene)


def test_a_ping_is_answered_while_the_server_works() -> None:
    go_on = Event()

    async def scene(stage: Stage) -> None:
        client = await stage.connect(OwnClient)
        client.say(3)
        client.send({"type": "flush"})
        client.send({"type": "ping"})
        await until(lambda: {"type": "pong"} in client.messages)
        go_on.set()
        await until(lambda: client.messages[-1].get("type") == "flushed")

    play(scene, TalkingRecognizer(lambda samples: go_on.wait(WAIT_S)))


def test_audio_after_the_end_is_not_heard() -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.connect(OwnClient)
        client.say(3)
        client.finish()
        client.say(3)
        client.finish()
        assert await closed(client) == ([], 1000)
        assert client.text == words_said(3)

    play(scene)


def test_of_those_who_said_no_more_than_hello_few_are_kept() -> None:
    async def scene(stage: Stage) -> None:
        vanished = [await stage.connect(OwnClient) for _ in range(4)]
        for client in vanished:
            client.vanish()
            await until(client.serving.done)
        await stage.connect(OwnClient)
        outcomes = []
        for client in vanished:
            ready = client.messages[0]
            token = ready["resume_token"]
            again = await stage.connect(OwnClient, type="resume", session=ready["session"], token=token)
            outcomes.append(again.messages[0].get("code", "ready"))
        assert outcomes == ["session_not_found"] * 2 + ["ready"] * 2

    play(scene, max_streams=2)

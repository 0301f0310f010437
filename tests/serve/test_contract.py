"""What the clients of all protocols can rely on: equal texts, limits, an orderly end, and nothing that is left."""

import json
from asyncio import create_task
from pathlib import Path

import pytest
from clients import (
    CaptionViewer,
    DeepgramClient,
    DeepgramFileClient,
    FileClient,
    OwnClient,
    RealtimeClient,
    StreamedFileClient,
    VoskClient,
    WyomingClient,
    asking,
    played,
    until,
)
from leaping import leap, settled

from fakes.live_sessions import UTTERANCE_SAMPLES, words_said
from harken.serve.rest import files
from harken.serve.work import jobs
from harken.serve.work.jobs import MAX_PENDING_S, MAX_UPDATES

LIMIT_S = 100.0
FILES = (FileClient, StreamedFileClient, DeepgramFileClient)
SOCKETS = (OwnClient, RealtimeClient, VoskClient, DeepgramClient)
LIVE = (*SOCKETS, WyomingClient)


@pytest.fixture(params=[*LIVE, *FILES])
def protocol(request):
    return request.param


@pytest.fixture(params=LIVE)
def live(request):
    return request.param


def only(*protocols):
    """Leave out protocols that do not have what is tested."""
    return pytest.mark.parametrize("protocol", protocols, indirect=True)


def by(protocol, own, realtime, wyoming, file=None):
    """Return what is expected of a protocol; those that are not named end as the own one."""
    expected = dict.fromkeys(FILES, file) | {RealtimeClient: realtime, WyomingClient: wyoming}
    return expected.get(protocol, own)


async def closed(client):
    """Wait until the server has closed the connection; return the errors that came, and the code."""
    await until(client.serving.done)
    return client.errors, client.close_code


@played()
async def test_what_is_said_comes_back(stage, protocol):
    client = await stage.connect(protocol, says=12, ends=True)
    await until(lambda: client.text == words_said(12))
    assert client.errors == []


@played(max_streams=1)
async def test_who_has_not_spoken_holds_no_slot(stage, live):
    silent = [await stage.connect(live) for _ in range(3)]
    silent[0].vanish()
    await settled()
    assert stage.n_held == 0
    speaker = await stage.connect(live, says=6)
    await until(lambda: speaker.text == words_said(5))
    assert stage.n_held == 1


@played(gate_from=UTTERANCE_SAMPLES, resume_s=30)
async def test_a_client_that_vanishes_frees_its_slot_and_is_computed_no_further(stage, protocol):
    client = await stage.connect(protocol, says=30)
    await until(lambda: len(stage.gate.heard) == 2)
    assert stage.n_held == 1
    client.vanish()
    await until(client.serving.done)
    assert stage.n_held == 1, "the engine still works for it"
    if protocol.resumable:
        await leap(29)
        assert stage.n_held == 1
        await leap(2)
    stage.gate.open.set()
    await until(lambda: stage.n_held == 0)
    assert len(stage.gate.heard) == 2
    assert client.errors == []
    is_counted = b'harken_cancelled_total{kind="file"} 1.0' in stage.service.metrics.text()
    assert is_counted == (protocol in FILES)


@played(gate_from=0, max_streams=1, max_queue_s=0.5)
async def test_a_server_without_room_says_so(stage, protocol):
    await stage.connect(protocol, says=6)
    await until(lambda: stage.gate.heard)
    other = await stage.connect(protocol, says=1, ends=True)
    assert await closed(other) == (["server_busy"], by(protocol, 1013, 1013, 0, 429))
    stage.gate.open.set()


@played(gate_from=0, idle_s=LIMIT_S / 10)
async def test_a_sender_that_is_too_fast_waits_and_loses_nothing(stage, live):
    client = await stage.connect(live, says=600)  # 60 messages
    await until(lambda: client.unread.qsize() < 60)
    await leap(LIMIT_S / 2)  # is not idle: its messages wait for the server
    assert client.unread.qsize() > 60 - MAX_PENDING_S - 5
    assert client.errors == []
    stage.gate.open.set()
    client.finish()
    await until(lambda: client.text == words_said(600))


@only(*LIVE, StreamedFileClient)
@played()
async def test_a_slow_reader_costs_no_memory_and_loses_nothing(stage, protocol):
    n_blocks = 40  # of the other client
    n_words = n_blocks * by(protocol, 10, 10, 10, 5)
    client = await stage.connect(protocol)
    client.reads.clear()
    client.say(1200)
    other = await stage.connect(protocol, says=n_words, ends=True)
    await until(lambda: other.text == words_said(n_words))  # in which the engine would have gone on
    if protocol in FILES:
        assert len(stage.gate.heard) < n_blocks + MAX_UPDATES + 4
    elif protocol is not OwnClient:  # which keeps some megabytes of messages
        assert client.unread.qsize() > 120 - n_blocks
    client.reads.set()
    client.finish()
    await until(lambda: client.text == words_said(1200))


@played()
async def test_a_reader_that_takes_nothing_is_given_up(stage, live):
    client = await stage.connect(live)
    client.reads.clear()
    client.say(30)
    await until(lambda: stage.n_held == 1)
    while not client.serving.done():  # the limit begins with the first message for it
        await leap(10)


@played(idle_s=LIMIT_S)
async def test_a_silent_connection_is_closed_with_what_was_said(stage, live):
    client = await stage.connect(live)
    await leap(LIMIT_S - 1)
    assert not client.serving.done()
    client.say(7)
    await until(lambda: client.text)
    await leap(LIMIT_S - 1)
    assert not client.serving.done()
    await leap(2)
    assert await closed(client) == by(live, (["idle"], 1008), (["idle_timeout"], 1000), ([], 0))
    if live not in (OwnClient, WyomingClient):
        assert client.text == words_said(7)


@played(idle_s=LIMIT_S)
async def test_a_connection_that_never_says_anything_is_closed(stage, protocol):
    client = protocol(stage)
    await leap(LIMIT_S + 1)
    outcome = (["idle"], 1008), (["idle_timeout"], 1000), ([], 0), (["request_timeout"], 408)
    assert await closed(client) == by(protocol, *outcome)


@played(gate_from=0, idle_s=LIMIT_S)
async def test_who_waits_for_the_server_is_not_idle(stage, protocol):
    client = await stage.connect(protocol, says=3, ends=True)
    await until(lambda: stage.gate.heard and client.unread.empty())
    await leap(3 * LIMIT_S)
    stage.gate.open.set()
    await until(lambda: client.text == words_said(3))
    assert client.errors == []


@only(*SOCKETS)
@played(session_limit_s=LIMIT_S, idle_s=10 * LIMIT_S)
async def test_a_session_that_has_lasted_as_long_as_it_may_ends_with_its_finals(stage, protocol):
    client = await stage.connect(protocol, says=7)
    await until(lambda: client.text)
    await leap(LIMIT_S + 1)
    outcome = by(protocol, (["session_limit"], 1008), (["session_expired"], 1000), None)
    assert await closed(client) == outcome
    assert client.text == words_said(7)


@only(OwnClient, WyomingClient, VoskClient, DeepgramClient, *FILES)
@played(session_limit_s=LIMIT_S, max_audio_s=LIMIT_S)
async def test_audio_that_is_longer_than_allowed_is_refused(stage, protocol):
    client = await stage.connect(protocol, says=int(10 * LIMIT_S) + 1, ends=True)
    outcome = (["session_limit"], 1008), None, (["session_limit"], 0), (["audio_too_long"], 413)
    assert await closed(client) == by(protocol, *outcome)


@only(*FILES)
@played(gate_from=UTTERANCE_SAMPLES)
async def test_a_recording_that_is_too_short_is_refused_however_late_its_end_is_found(
    stage, protocol, monkeypatch
):
    monkeypatch.setattr(files, "MIN_AUDIO_S", 1.0)
    client = await stage.connect(protocol, says=7)
    await until(lambda: len(stage.gate.heard) == 2)
    await settled()
    stage.gate.open.set()
    assert await closed(client) == (["audio_too_short"], 400)


@played(gate_from=UTTERANCE_SAMPLES)
async def test_the_end_of_the_server_brings_the_last_words(stage, protocol):
    silent, client = await stage.connect(protocol), await stage.connect(protocol)
    client.say(7)
    await until(lambda: client.text or len(stage.gate.heard) == 2)
    draining = create_task(stage.service.drain())
    await settled()
    assert not draining.done() or client.text == words_said(7)  # by then without the gate
    stage.gate.open.set()
    await draining
    outcome = (["draining"], 1012), (["draining"], 1012), ([], 0)
    assert await closed(client) == by(protocol, *outcome, ([], 200))
    assert await closed(silent) == by(protocol, *outcome, (["draining"], 503))
    assert client.text == words_said(7)


@only(VoskClient, DeepgramClient)
@played(gate_from=UTTERANCE_SAMPLES)
async def test_the_end_of_the_server_loses_nothing_of_who_has_said_all(stage, protocol):
    client = await stage.connect(protocol, says=7, ends=True)
    await until(lambda: stage.gate.heard)
    await settled()
    draining = create_task(stage.service.drain())
    await settled()
    stage.gate.open.set()
    await draining
    await until(client.serving.done)
    assert client.text == words_said(7)


@played(gate_from=0)
async def test_who_is_cut_off_by_the_end_of_the_server_is_told_to_come_again(stage, protocol):
    client = await stage.connect(protocol, says=1200)
    await until(lambda: stage.gate.heard)
    closing = create_task(stage.service.close())
    await until(lambda: not stage.service.models.loaded)
    await settled()
    stage.gate.open.set()
    await closing
    code = by(protocol, 1012, 1012, 0, 200 if protocol is StreamedFileClient else 503)
    errors, closed_with = await closed(client)
    assert ({*errors}, closed_with) == ({"draining"}, code)


@played()
async def test_a_mistake_of_the_server_is_told_without_its_words(stage, protocol, caplog):
    stage.gate.failure = ArithmeticError("what was said in private")
    client = await stage.connect(protocol, says=1, ends=True)
    assert await closed(client) == (["internal_error"], by(protocol, 1011, 1011, 0, 500))
    assert "private" not in json.dumps(client.messages)
    assert "ArithmeticError" in caplog.text


@only(OwnClient, RealtimeClient, DeepgramClient, FileClient)
@played(api_key=("the key",))
async def test_nobody_comes_in_without_the_key(stage, protocol):
    client = protocol(stage)
    await until(client.serving.done)
    assert client.close_code == 401


NESTED = "[" * 9_999


@pytest.mark.parametrize(
    ("protocol", "message", "error", "code"),
    [
        (OwnClient, NESTED, "invalid_json", 1008),
        (OwnClient, "[]", "invalid_json", 1008),
        (OwnClient, '{"type": "say"}', "invalid_value", 1008),
        (OwnClient, bytes(1 << 21), "message_too_big", 1009),
        (RealtimeClient, " " * (16 << 20), None, 1009),
        (VoskClient, NESTED, "invalid_value", 1008),
        (VoskClient, '{"config": {"sample_rate": 1}}', "invalid_value", 1008),
        (VoskClient, '{"config": {"sample_rate": true}}', "invalid_value", 1008),
        (VoskClient, '{"config": {"max_alternatives": -1}}', "invalid_value", 1008),
        (VoskClient, '{"config": {"words": false}}', None, None),
        (DeepgramClient, NESTED, "SchemaError", None),
        (DeepgramClient, '{"type": "KeepAlive"}', None, None),
        (WyomingClient, b'{"type": "say"}\n', None, None),
        (DeepgramFileClient, b'{"url": "http://localhost/"}', "Bad Request", 400),
    ],
    ids=lambda value: repr(value)[:30],
    indirect=["protocol"],
)
@played(resume_s=30, max_upload_mb=1)
async def test_a_bad_message_is_answered_in_a_line(stage, protocol, message, error, code):
    client = await stage.connect(protocol)
    client.send(message)
    await until(lambda: client.errors == [error] * bool(error) and client.close_code == code)
    if code is None:  # it goes on
        client.say(6)
        await until(lambda: client.text == words_said(5))
    else:
        await until(client.serving.done)
    if protocol is OwnClient:  # it has ended for good
        assert (await client.resumed(0)).errors == ["session_not_found"]
        assert stage.n_held == 0


def sharing(protocol):
    return asking(protocol, query=protocol.query + b"&captions=talk")


def diarizing(protocol):
    return asking(protocol, asks_for_speakers=True)


@only(*SOCKETS)
@played()
async def test_captions_show_what_is_said_and_a_slow_viewer_holds_up_nobody(stage, protocol):
    early, slow = await stage.connect(CaptionViewer), await stage.connect(CaptionViewer)
    slow.reads.clear()
    earlier = await stage.connect(sharing(OwnClient))
    client = await stage.connect(sharing(protocol))
    earlier.say(12)  # is shown no longer: the name is that of the later session
    client.say(303)
    await until(lambda: early.messages[-1]["committed"])
    client.finish()
    await until(lambda: client.text == words_said(303) and earlier.text == words_said(10))
    if protocol is RealtimeClient:  # which goes on until its client goes
        late = await stage.connect(CaptionViewer)
        await until(lambda: late.messages)
        assert late.messages[0]["lines"] == early.messages[-1]["lines"]
        client.vanish()
    for viewer in (early, slow):  # the slow one reads on when all has been shown
        viewer.reads.set()
        await until(lambda seen=viewer.messages: len(seen) > 1 and not seen[-1]["live"])
        assert words_said(303).endswith(" ".join(viewer.messages[-1]["lines"]))
    assert len(slow.messages) < 5
    late = await stage.connect(CaptionViewer)
    await until(lambda: late.messages)
    assert late.messages == [{"lines": [], "committed": "", "tentative": "", "live": False}]


@only(*SOCKETS)
@played()
async def test_results_say_who_speaks_to_those_who_ask(stage, protocol):
    client, other = [
        await stage.connect(asked, says=12, ends=True) for asked in (diarizing(protocol), protocol)
    ]
    await until(lambda: client.text == other.text == words_said(12))
    assert client.speakers == ["A", "B", "A"]
    assert '"A"' not in json.dumps(other.messages)


@only(*SOCKETS)
@played()
async def test_who_asks_for_speakers_is_refused_by_a_server_without_their_models(stage, protocol):
    stage.tells_speakers = False
    client = await stage.connect(diarizing(protocol), says=1)
    code = None if protocol is RealtimeClient else 1008  # which may ask for another model
    await until(lambda: client.errors == ["unsupported_value"] and client.close_code == code)
    if protocol is RealtimeClient:
        assert client.messages[-1]["error"]["param"] == "session.audio.input.transcription.model"
    assert "secret" not in json.dumps(client.messages) + client.close_reason


@played()
async def test_a_client_that_only_stops_sending_still_gets_its_transcript(stage):
    client = await stage.connect(WyomingClient, says=7, ends=True)
    client.vanish()
    await until(client.serving.done)
    assert client.text == words_said(7)


@played()
async def test_other_options_take_another_stream_and_lose_no_word(stage):
    client = await stage.connect(RealtimeClient)
    client.send_audio(0.35)
    transcription = {"prompt": "Names."}
    client.send({"type": "session.update", "session": {"audio": {"input": {"transcription": transcription}}}})
    client.send_audio(0.25)
    client.finish()
    await until(lambda: client.text == f"{words_said(3)} {words_said(2)}")
    assert stage.n_held == 1


MANUAL = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}}


def completed(client):
    """Return the transcripts of turns."""
    return [message["transcript"] for message in client.messages if message["type"].endswith(".completed")]


@played()
async def test_a_turn_that_is_committed_has_the_text_of_a_file_with_its_samples(stage):
    client = await stage.connect(RealtimeClient)
    client.send(MANUAL)
    for n_words in (7, 400, 1):
        client.say(3)
        client.send({"type": "input_audio_buffer.clear"})
        client.say(n_words)
        client.finish()
    await until(lambda: completed(client) == [words_said(n_words) for n_words in (7, 400, 1)])


@played(max_audio_s=LIMIT_S)
async def test_a_turn_that_is_longer_than_a_recording_may_be_ends_the_session(stage):
    client = await stage.connect(RealtimeClient)
    client.send(MANUAL)
    client.say(int(10 * LIMIT_S) + 10)
    assert await closed(client) == (["audio_too_long"], 1009)
    assert client.messages[-1]["error"]["param"] == "audio"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="stands for a full disk")
@played()
async def test_a_disk_that_is_full_ends_a_turn_and_leaves_nothing(stage, monkeypatch, caplog):
    full = Path("/dev/full").open("w+b")  # noqa: SIM115 (closed by the turn)
    monkeypatch.setattr(jobs, "SpooledTemporaryFile", lambda size: full)
    client = await stage.connect(RealtimeClient)
    client.send(MANUAL)
    client.say(30)
    assert await closed(client) == (["out_of_space"], 1013)
    assert "unforeseen" not in caplog.text


@played(gate_from=0)
async def test_others_are_served_while_a_long_turn_is_transcribed(stage):
    stage.gate.open.set()
    client, other = await stage.connect(RealtimeClient), await stage.connect(OwnClient)
    client.send(MANUAL)
    client.say(20)
    await until(lambda: len(stage.gate.heard) == 2)
    stage.gate.open.clear()
    client.finish()
    await until(lambda: len(stage.gate.heard) == 3)  # and waits, before what the resampler held back
    other.say(1)
    await settled()
    stage.gate.open.set()
    await until(lambda: completed(client) == [words_said(20)])
    assert stage.gate.heard[3:6] == [0, 0, UTTERANCE_SAMPLES]


@played(gate_from=0)
async def test_pauses_are_shown_while_there_is_nothing_else_to_send(stage):
    client = await stage.connect(StreamedFileClient, says=6)
    await until(lambda: stage.gate.heard)
    await leap(31)
    assert client.n_pauses == 2
    stage.gate.open.set()
    await until(lambda: client.text == words_said(6))


@played()
async def test_a_stream_that_has_failed_to_take_audio_is_followed_by_one_alone(stage, monkeypatch):
    with monkeypatch.context() as failing:
        failing.setattr(jobs.LiveJob, "feed", None)
        client = await stage.connect(RealtimeClient, says=3)
        await until(lambda: client.errors)
    assert client.errors == ["internal_error"]
    client.send({"type": "session.update", "session": {}})
    client.say(3)
    await until(lambda: client.messages[-1]["type"].endswith(".delta"))
    assert stage.n_held == 1

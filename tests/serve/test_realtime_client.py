"""OpenAI's own client and plain WebSockets against a server: the route, its keys and subprotocols, real speech."""

import json
from base64 import b64encode

import numpy as np
import pytest
from openai import BadRequestError, PermissionDeniedError
from realtime_script import check_event, pcm
from served_audio import wav
from talking import TalkingRecognizer
from websockets.sync.client import connect

from fakes.live_sessions import words_said
from harken.audio import load_audio
from harken.serve.options import ServeOptions
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, words
from serving import serving

KEY = "the key"
INTENT = {"intent": "transcription"}
JFK = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
COMPLETED, DELTA = ".completed", ".delta"


@pytest.fixture(scope="module")
def server():
    """A server with a key, that hears a word in each tenth of a second."""
    options = ServeOptions(preload=False, api_key=(KEY,))
    with serving(lambda id: TalkingRecognizer(), options=options) as running:
        yield running


def configure(connection, **audio_input):
    connection.session.update(session={"type": "transcription", "audio": {"input": audio_input}})


def receive_until(connection, type, *, beta=False):
    """Receive events, each held to the client's types, up to one of a type."""
    events = []
    receive = getattr(connection, "recv_bytes", None) or connection.recv
    while not (events and events[-1]["type"].endswith(type)):
        events.append(json.loads(receive()))
        check_event(events[-1], beta=beta)
    return events


def transcript_of(events):
    """Return the transcripts, which may revise their deltas."""
    return " ".join(event["transcript"] for event in events if event["type"].endswith(COMPLETED))


def test_what_the_model_cannot_do_is_refused_at_the_update_and_the_session_stays_as_it_was(server):
    language = "session.audio.input.transcription.language"
    with server.client(KEY).realtime.connect(extra_query=INTENT) as connection:
        configure(connection, transcription={"language": "en", "prompt": "before"}, turn_detection=None)
        connection.input_audio_buffer.append(audio=pcm(0.35))
        configure(connection, transcription={"language": "de", "prompt": "after"}, turn_detection=None)
        *_, refused = receive_until(connection, "error")
        connection.input_audio_buffer.append(audio=pcm(0.4))
        configure(connection, transcription={"language": "en"})
        connection.input_audio_buffer.commit()
        events = receive_until(connection, "item.done")
    assert (refused["error"]["code"], refused["error"]["param"]) == ("invalid_value", language)
    (updated,) = (event["session"] for event in events if event["type"] == "session.updated")
    assert updated["audio"]["input"]["transcription"]["prompt"] == "before"
    assert events[-1]["item"]["content"][0]["transcript"] == transcript_of(events) == words_said(7)
    session = {"type": "transcription", "audio": {"input": {"transcription": {"language": "de"}}}}
    with pytest.raises(BadRequestError) as no_key:
        server.client(KEY).realtime.client_secrets.create(session=session)
    assert (no_key.value.code, no_key.value.param) == ("invalid_value", language)


def test_a_short_lived_key_opens_sessions_with_its_configuration_and_makes_no_others(server):
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
        expiry = {"anchor": "created_at", "seconds": seconds}
        with pytest.raises(BadRequestError, match="10 to 7200") as refused:
            make(expires_after=expiry)
        assert refused.value.param == "expires_after.seconds"
        with pytest.raises(BadRequestError) as refused:
            server.client(KEY).beta.realtime.transcription_sessions.create(client_secret={"expires_at": expiry})
        assert refused.value.param == "client_secret.expires_at.seconds"


def test_a_key_that_is_not_valid_unicode_is_refused_by_its_escape(server):
    for path, body, param in (
        ("client_secrets", r'{"\ud800": 1}', r"\ud800"),
        ("client_secrets", r'{"session": {"\ud800": 1}}', r"session.\ud800"),
        ("transcription_sessions", r'{"client_secret": {"\ud800": 7}}', r"client_secret.\ud800"),
    ):
        headers = {"authorization": f"Bearer {KEY}"}
        refused = server.http.post(f"/v1/realtime/{path}", content=body, headers=headers)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (400, "unknown_parameter", param)


@pytest.mark.parametrize("by_header", [True, False])
def test_the_beta_dialect_has_short_lived_keys_and_sessions_too(server, by_header):
    sessions = server.client(KEY).beta.realtime.transcription_sessions
    expiry = {"expires_at": {"anchor": "created_at", "seconds": 30}}
    made = sessions.create(input_audio_format="g711_ulaw", client_secret=expiry)
    assert made.input_audio_format == "g711_ulaw"
    headers = {"Authorization": f"Bearer {made.client_secret.value}"}
    dialect = {"subprotocols": ["realtime", "openai-beta.realtime-v1"]}
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


def send(connection, samples):
    """Send samples, and return them as a file at 24 kHz."""
    at_24_khz = np.interp(np.arange(len(samples) * 3 // 2) / 1.5, np.arange(len(samples)), samples)
    recording = wav(at_24_khz, rate_hz=24_000)
    for start in range(44, len(recording), 4_801):
        connection.input_audio_buffer.append(audio=b64encode(recording[start : start + 4_801]).decode())
    return recording


@pytest.mark.real
def test_a_turn_committed_after_pauses_has_the_text_of_a_file(unhurried_server):
    said = load_audio(EXAMPLE)
    pause = np.zeros(3 * SAMPLE_RATE, np.float32)
    turns = [np.concatenate([said[:56_000], pause, said[56_000:], pause]), np.append(pause, said[:80_000])]
    with unhurried_server.client() as client, client.realtime.connect(extra_query=INTENT) as connection:
        configure(connection, turn_detection=None)
        for samples in turns:
            recording = send(connection, samples)
            connection.input_audio_buffer.commit()
            heard = transcript_of(receive_until(connection, "item.done"))
            assert heard == client.audio.transcriptions.create(model="whisper-1", file=recording).text.strip()


@pytest.mark.real
def test_turns_of_real_speech_are_detected(unhurried_server):
    with unhurried_server.client().realtime.connect(extra_query=INTENT) as connection:
        turns = {"type": "server_vad", "silence_duration_ms": 1200}
        configure(connection, turn_detection=turns, transcription={"delay": "high"})
        send(connection, np.append(load_audio(EXAMPLE), np.zeros(20_000, np.float32)))
        events = receive_until(connection, "item.done")
    assert " ".join(words(transcript_of(events))) == JFK
    assert [event["type"].rsplit(".", 1)[-1] for event in events if not event["type"].endswith(DELTA)][2:] == [
        *("speech_started", "speech_stopped", "committed", "added", "completed", "done")
    ]

"""The guard: which Host, Origin and key a request needs, over HTTP and WebSockets, and what others are told."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from talking import TalkingRecognizer
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cli_runner import eventually
from harken.errors import OptionError
from harken.serve import server
from harken.serve.errors import RequestError
from harken.serve.guard import MAX_TICKETS, Tickets
from harken.serve.options import ServeOptions
from serving import Serving, serving

KEY = "a-key-of-the-test"
BEARER = {"authorization": f"Bearer {KEY}"}


def options(**given: Any) -> ServeOptions:
    return ServeOptions(preload=False, **given)


def serve(**given: Any) -> Any:
    return serving(lambda id: TalkingRecognizer(), options=options(**given))  # type: ignore[arg-type,return-value]


@pytest.fixture(scope="module")
def local() -> Iterator[Serving]:
    with serve(origin=("https://friend.example",), allowed_host=("Harken.Example",)) as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Serving]:
    with serve(api_key=(KEY, "another")) as server:
        yield server


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "192.168.1.5", "harken.example"]
)
def test_addresses_and_own_names_are_allowed_hosts(local: Serving, host: str) -> None:
    reply = httpx.get(f"{local.url}/v1/models", headers={"host": f"{host}:{local.port}"})
    assert reply.status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""])
def test_names_of_other_sites_are_refused(local: Serving, host: str) -> None:
    reply = httpx.get(f"{local.url}/v1/models", headers={"host": host})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host")


def test_pages_of_the_server_and_of_friends_may_use_it(local: Serving) -> None:
    for origin in (local.url, "https://friend.example"):
        reply = httpx.get(f"{local.url}/v1/models", headers={"origin": origin})
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == origin
        assert "origin" in reply.headers["vary"].lower()


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://friend.example.evil"]
)
def test_other_pages_may_not(local: Serving, origin: str) -> None:
    reply = httpx.get(f"{local.url}/v1/models", headers={"origin": origin})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin")
    assert "access-control-allow-origin" not in reply.headers
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{local.socket_url}/v1/stream", origin=origin).close()  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403


def test_a_preflight_is_answered_without_a_key(guarded: Serving) -> None:
    headers = {"origin": guarded.url, "access-control-request-method": "POST"}
    reply = httpx.options(f"{guarded.url}/v1/audio/transcriptions", headers=headers)
    assert reply.status_code == 204
    assert "authorization" in reply.headers["access-control-allow-headers"]


@pytest.mark.parametrize(
    "headers",
    [BEARER, {"authorization": f"bearer {KEY}"}, {"x-api-key": "another"}],
)
def test_a_key_opens_the_door(guarded: Serving, headers: dict[str, str]) -> None:
    assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": ""},
    ],
)
def test_without_one_it_is_closed(guarded: Serving, headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/metrics", "/v1/harken/info", "/nothing"):
        reply = httpx.get(f"{guarded.url}{path}", headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert KEY not in reply.text


def test_health_and_readiness_are_open(guarded: Serving) -> None:
    assert httpx.get(f"{guarded.url}/healthz").text == "ok\n"
    assert httpx.get(f"{guarded.url}/readyz").json()["status"] == "ready"


def test_sockets_take_the_key_as_a_subprotocol(guarded: Serving) -> None:
    url = f"{guarded.socket_url}/v1/realtime?intent=transcription"
    with pytest.raises(InvalidStatus) as refused:
        connect(url).close()
    assert refused.value.response.status_code == 401
    subprotocols = ["realtime", f"openai-insecure-api-key.{KEY}"]
    with connect(url, subprotocols=subprotocols) as socket:  # type: ignore[arg-type]
        assert socket.subprotocol == "realtime"


def test_a_key_for_minutes_is_a_key(guarded: Serving) -> None:
    made = httpx.post(f"{guarded.url}/v1/realtime/client_secrets", json={}, headers=BEARER).json()["value"]
    assert httpx.get(f"{guarded.url}/v1/models", headers={"authorization": f"Bearer {made}"}).status_code == 200


def test_every_response_has_a_number_and_every_error_the_body_of_openai(local: Serving) -> None:
    replies = [httpx.get(f"{local.url}/nothing"), httpx.get(f"{local.url}/v1/audio/transcriptions")]
    assert [reply.status_code for reply in replies] == [404, 405]
    assert len({reply.headers["x-request-id"] for reply in replies}) == 2
    for reply in replies:
        assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


def test_refusals_are_counted_by_their_reason(guarded: Serving) -> None:
    before = guarded.metric("harken_rejected_total", reason="key")
    httpx.get(f"{guarded.url}/v1/models")
    assert eventually(lambda: guarded.metric("harken_rejected_total", reason="key") > before)
    assert guarded.metric("harken_rejected_total", reason="key") == before + 1


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "harken.example", "::"])
def test_other_machines_need_a_key(host: str) -> None:
    with pytest.raises(OptionError, match="host"):
        options(host=host)
    assert options(host=host, api_key=(KEY,)).host == host
    assert options(host=host, auth=False).host == host


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not installed"
)
def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    names = [
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*command, *names], check=True, capture_output=True)
    files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    recognizer: Any = TalkingRecognizer()
    with serving(lambda id: recognizer, options=options(), **files) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"https://127.0.0.1:{server.port}/healthz", verify=context).text == "ok\n"


def test_a_connection_that_asks_for_nothing_is_closed() -> None:
    recognizer: Any = TalkingRecognizer()
    serving_it = serving(lambda id: recognizer, options=options(), http=server.HttpProtocol)
    with (
        serving_it as running,
        connect(f"{running.socket_url}/v1/stream") as live,
        ThreadPoolExecutor(1) as clients,
    ):
        with socket.create_connection(("127.0.0.1", running.port)) as silent:
            silent.sendall(b"GET /healthz HTTP/1.1\r\nX-A: ")
            answer = clients.submit(silent.recv, 1)
            running.leap_until(answer.done)
            assert answer.result() == b""
        live.send('{"type": "hello"}')
        assert "ready" in live.recv(60)


@pytest.mark.parametrize("key", ["", "ek_", "ek_guess", "\udcff"])
def test_a_ticket_is_valid_until_it_expires(key: str) -> None:
    now = [1_000.0]
    tickets = Tickets(clock=lambda: now[0])
    ticket, other = tickets.make(60, session="a configuration"), tickets.make(60)
    assert ticket.expires_at == 1_060
    assert ticket.value != other.value
    assert tickets.find(ticket.value) is ticket
    assert tickets.find(key) is None
    now[0] = 1_060.0
    assert tickets.find(ticket.value) is None


def test_the_number_of_tickets_is_limited_and_expired_ones_make_room() -> None:
    now = [0.0]
    tickets = Tickets(clock=lambda: now[0])
    for _ in range(MAX_TICKETS):
        tickets.make(10)
    with pytest.raises(RequestError, match="short-lived keys"):
        tickets.make(10)
    now[0] = 11.0
    assert tickets.find(tickets.make(10).value)

"""The guard: which Host, Origin and key a request needs, over HTTP and WebSockets, and what others are told."""

import shutil
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
from leaping import leap
from talking import TalkingRecognizer
from websockets.sync.client import connect

from cli_runner import eventually
from harken.errors import OptionError
from harken.serve import server
from harken.serve.errors import RequestError
from harken.serve.guard import MAX_TICKETS, Tickets
from harken.serve.options import ServeOptions
from serving import serving

KEY = "a-key-of-the-test"
BEARER = {"authorization": f"Bearer {KEY}"}


def serve(**given):
    return serving(lambda id: TalkingRecognizer(), options=ServeOptions(preload=False, **given))


@pytest.fixture(scope="module")
def local():
    with serve(origin=("https://friend.example",), allowed_host=("Harken.Example",)) as server:
        yield server


@pytest.fixture(scope="module")
def guarded():
    with serve(api_key=(KEY, "another")) as server:
        yield server


def asked(server, path="/v1/models", **headers):
    """Return the status of a request with some headers, and the code of the error."""
    reply = server.http.get(path, headers=headers)
    return reply.status_code, None if reply.status_code == 200 else reply.json()["error"]["code"]


def test_addresses_and_own_names_are_allowed_hosts_and_names_of_other_sites_are_not(local):
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]", "192.168.1.5", "harken.example"):
        assert asked(local, host=f"{host}:{local.port}") == (200, None)
    line = local.http.get("/v1/models", headers={"host": "harken:8765"}).json()["error"]["message"]
    assert "the option --allowed-host harken, or HARKEN_ALLOWED_HOST=harken " in line
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""):
        assert asked(local, host=host) == (403, "host")


def test_a_load_balancer_that_names_no_host_is_told_the_health(local):
    with socket.create_connection(("127.0.0.1", local.port)) as balancer:
        balancer.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert balancer.recv(1000).startswith(b"HTTP/1.1 200")


def test_pages_of_the_server_and_of_friends_may_use_it_and_other_pages_may_not(local):
    for origin in (local.url, "https://friend.example"):
        reply = local.http.get("/v1/models", headers={"origin": origin})
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == origin
        assert "origin" in reply.headers["vary"].lower()
        read_by_libraries = {"x-request-id", "retry-after", "x-should-retry"}
        assert read_by_libraries <= set(reply.headers["access-control-expose-headers"].split(", "))
    others = ("https://evil.example", "null", "http://127.0.0.1:1", "https://friend.example.evil")
    for origin in (*others, f"{local.url}.evil"):
        reply = local.http.get("/v1/models", headers={"origin": origin})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin")
        assert "access-control-allow-origin" not in reply.headers
        assert local.refusal("/v1/stream", origin=origin).status_code == 403
        # Of a page that a proxy serves under another name: it then shows the refusals.
        reply = local.http.get("/page/app.js", headers={"origin": origin})
        assert (reply.status_code, "access-control-allow-origin" in reply.headers) == (200, False)


def test_a_preflight_is_answered_without_a_key(guarded):
    headers = {"origin": guarded.url, "access-control-request-method": "POST"}
    reply = guarded.http.options("/v1/audio/transcriptions", headers=headers)
    assert reply.status_code == 204
    assert "authorization" in reply.headers["access-control-allow-headers"]
    wanted = "authorization,x-stainless-arch,x-stainless-timeout"  # of OpenAI's library in a browser
    reply = guarded.http.options(reply.url, headers=headers | {"access-control-request-headers": wanted})
    assert reply.headers["access-control-allow-headers"] == wanted
    refused = guarded.http.options(reply.url, headers=headers | {"origin": "https://evil.example"})
    assert (refused.status_code, "access-control-allow-headers" in refused.headers) == (403, False)


def test_a_key_opens_the_door_and_without_one_it_is_closed(guarded):
    made = guarded.http.post("/v1/realtime/client_secrets", json={}, headers=BEARER).json()["value"]
    for key in (BEARER, {"authorization": f"Token {KEY}"}, {"authorization": f"Bearer {made}"}):
        assert asked(guarded, **key) == (200, None)
    assert asked(guarded, **{"x-api-key": "another"}) == (200, None)
    wrong = ("x-api-key", KEY[:-1]), ("x-api-key", ""), ("authorization", f"Basic {KEY}")
    for headers in ({}, {"authorization": "Bearer wrong"}, *({name: value} for name, value in wrong)):
        for path in ("/v1/models", "/metrics", "/v1/harken/info", "/v1/captions/talk", "/nothing"):
            assert asked(guarded, path, **headers) == (401, "invalid_api_key")
    assert KEY not in guarded.http.get("/v1/models").text


def test_health_and_readiness_are_open(guarded):
    assert guarded.http.get("/healthz").text == "ok\n"
    assert guarded.http.get("/readyz").json()["status"] == "ready"


def test_sockets_take_the_key_as_a_subprotocol(guarded):
    path = "/v1/realtime?intent=transcription"
    assert guarded.refusal(path).status_code == 401
    for offered in (["realtime", f"openai-insecure-api-key.{KEY}"], ["token", KEY]):  # the latter by Deepgram's
        with connect(guarded.socket_url + path, subprotocols=offered) as socket:
            assert socket.subprotocol == offered[0]


def test_every_response_has_a_number_and_every_error_the_body_of_openai(local):
    replies = [local.http.get("/nothing"), local.http.get("/v1/audio/transcriptions")]
    assert [reply.status_code for reply in replies] == [404, 405]
    refused = local.refusal("/nothing")
    assert refused.status_code == 404
    assert b"/nothing: no WebSocket is served here" in refused.body
    for path in ("/v1/stream", "/realtime", "/v1/listen"):  # as a proxy sends it that passes no Upgrade on
        reply = local.http.get(path)
        assert (reply.status_code, reply.headers["upgrade"]) == (426, "websocket")
        assert f"GET {path}: allowed is a WebSocket; a proxy" in reply.text
    assert len({reply.headers["x-request-id"] for reply in replies}) == 2
    for reply in replies:
        assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


def test_an_address_with_a_slash_behind_it_leads_to_the_one_without_also_behind_a_proxy(local):
    for target, meant in (("/captions/?name=talk", "../captions?name=talk"), ("/v1/harken/info/", "../info")):
        reply = local.http.get(target)
        assert (reply.status_code, reply.headers["location"]) == (307, meant)
    assert local.http.get("/v1/harken/info/", follow_redirects=True).status_code == 200


def test_refusals_are_counted_by_their_reason(guarded):
    before = guarded.metric("harken_rejected_total", reason="key")
    guarded.http.get("/v1/models")
    assert eventually(lambda: guarded.metric("harken_rejected_total", reason="key") > before)
    assert guarded.metric("harken_rejected_total", reason="key") == before + 1


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "harken.example", "::"])
def test_other_machines_need_a_key(host):
    with pytest.raises(OptionError, match="host"):
        ServeOptions(host=host)
    assert ServeOptions(host=host, api_key=(KEY,)).host == host
    assert ServeOptions(host=host, auth=False).host == host


@pytest.mark.parametrize(
    "given",
    [
        {"origin": ("https://app.example/",)},
        {"origin": ("app.example",)},
        {"allowed_host": ("harken:8765",)},
        {"allowed_host": ("http://harken",)},
    ],
)
def test_an_origin_or_a_name_that_no_request_can_have_is_refused(given):
    with pytest.raises(OptionError, match=rf"{next(iter(given))}.*allowed is"):
        ServeOptions(**given)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_certificate_makes_it_https(tmp_path, caplog):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    outputs = ("-keyout", str(key), "-out", str(certificate))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *outputs]
    subprocess.run(command, check=True, capture_output=True)
    with serve(certfile=str(certificate), keyfile=str(key)) as running:
        context = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"https://127.0.0.1:{running.port}/healthz", verify=context).text == "ok\n"
        with connect(f"wss://127.0.0.1:{running.port}/v1/stream", ssl=context):
            pass
        running.run(partial(leap, server.FIRST_REQUEST_S + 1))
    assert "Traceback" not in caplog.text


def test_a_connection_that_asks_for_nothing_is_closed():
    with (
        serve() as running,
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


def test_tickets_are_valid_until_they_expire_and_their_number_is_limited():
    now = [1_000.0]
    tickets = Tickets(clock=lambda: now[0])
    ticket, *others = (tickets.make(60, session="a configuration") for _ in range(MAX_TICKETS))
    assert ticket.expires_at == 1_060
    assert ticket.value not in {other.value for other in others}
    assert tickets.find(ticket.value) is ticket
    assert not any(map(tickets.find, ("", "ek_", "ek_guess", "\udcff")))
    with pytest.raises(RequestError, match="short-lived keys"):
        tickets.make(60)
    now[0] = 1_060.0
    assert tickets.find(ticket.value) is None
    assert tickets.find(tickets.make(10).value)  # for which expired ones make room

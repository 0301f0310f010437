"""Files that are too large or too long, clients that go away, and clients that read slowly."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from leaping import LeapLoop, leap
from served_audio import wav
from test_rest_forms import BOUNDARY, FORM_TYPE, check_refused, form_body
from tone_server import (
    FIELDS,
    PATH,
    GatedToneBackend,
    event_lines,
    eventually,
    serving_tones,
    speak,
    transcribe_tones,
)

from fakes.tone_backend import ToneBackend
from harken.serve.app import make_app
from harken.serve.options import ServeOptions
from harken.serve.rest.events import with_pauses
from harken.serve.work.file_job import MAX_UPDATES
from serving import Serving

DESCRIPTORS = Path("/proc/self/fd")
HOURS = 8
BLOCK_SAMPLES = 65_535
SPEECH = speak(100)  # 40 s, ten windows
FORM = form_body(
    *((f'name="{name}"', value.encode()) for name, value in FIELDS.items()),
    ('name="file"; filename="speech.wav"', wav(SPEECH.samples)),
)


STREAMED_FORM = form_body(('name="stream"', b"true")).removesuffix(f"--{BOUNDARY}--\r\n".encode()) + FORM
CONTENT_TYPE = {"content-type": FORM_TYPE}


@cache
def silent_flac(*, tells_duration: bool = True) -> bytes:
    """Write hours of silence in some kilobytes, with a header that may conceal their number."""
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=1_000)
        stream.layout, stream.format = "mono", "s16"
        stream.codec_context.options = {"frame_size": f"{BLOCK_SAMPLES}"}
        frame = av.AudioFrame.from_ndarray(np.zeros((1, BLOCK_SAMPLES), np.int16), "s16", "mono")
        frame.rate, frame.time_base = 1_000, Fraction(1, 1_000)
        for start in range(0, HOURS * 3_600_000, BLOCK_SAMPLES):
            frame.pts = start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    flac = file.getvalue()
    return flac if tells_duration else flac[:21] + bytes([flac[21] & 0xF0, 0, 0, 0, 0]) + flac[26:]


@contextmanager
def connection(server: Serving, headers: str) -> Iterator[socket.socket]:
    """Connect, and send the beginning of a request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {FORM_TYPE}\r\n{headers}\r\n\r\n"
        client.sendall(head.encode())
        yield client


def test_a_file_that_is_too_large_is_refused_before_its_end() -> None:
    options = ServeOptions(preload=False, max_upload_mb=0.05)
    with serving_tones(options=options) as server:
        with connection(server, "Content-Length: 60000") as client:  # and nothing of the body
            assert client.recv(1000).startswith(b"HTTP/1.1 413")
        with connection(server, "Transfer-Encoding: chunked") as client:
            for start in range(0, 60_000, 1000):
                client.sendall(b"3e8\r\n" + FORM[start : start + 1000] + b"\r\n")  # and no end
            assert client.recv(1000).startswith(b"HTTP/1.1 413")
        refused = httpx.post(f"{server.url}{PATH}", content=FORM, headers=CONTENT_TYPE)
        check_refused(refused, 413, "request_too_large", "file")
        assert refused.json()["error"]["message"] == "the request is larger than 0.05 MB, which are allowed"


def test_hours_of_silence_in_kilobytes_are_refused_by_their_header() -> None:
    backend = GatedToneBackend()
    with serving_tones(backend) as server:
        refused = httpx.post(f"{server.url}{PATH}", data=FIELDS, files={"file": silent_flac()})
        assert len(silent_flac()) < 50_000
        check_refused(refused, 413, "audio_too_long", "file")
        assert server.metric("harken_compute_seconds_total", kind="file") == 0


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_duration_that_the_header_conceals_ends_the_decoding_at_the_limit(stream: str) -> None:
    max_audio_s, step_s = 1_000.0, 11 * BLOCK_SAMPLES / 1_000  # ten blocks a step
    options = ServeOptions(preload=False, max_audio_s=max_audio_s)
    before = peak_memory_bytes()
    with serving_tones(options=options) as server:
        fields = FIELDS | {"stream": stream, "include[]": "harken.events"}
        files = {"file": silent_flac(tells_duration=False)}
        answer = httpx.post(f"{server.url}{PATH}", data=fields, files=files, timeout=60)
        if stream == "true":
            *progress, end = map(json.loads, event_lines(answer.text))
            assert {event["type"] for event in progress} == {"harken.progress"}
            assert progress[0]["duration_s"] is None
            assert end["error"]["code"] == "audio_too_long"
        else:
            check_refused(answer, 413, "audio_too_long", "file")
        assert 0 < server.metric("harken_audio_seconds_total", kind="file") < max_audio_s + step_s
        assert eventually(lambda: server.metric("harken_queue_jobs") == 0)
    assert peak_memory_bytes() - before < 150e6  # all of it would take 1.8 GB


def peak_memory_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_the_engine_within_a_window(stream: bool) -> None:
    backend = GatedToneBackend()
    with serving_tones(backend) as server:
        backend.gate.clear()
        body = STREAMED_FORM if stream else FORM
        with connection(server, f"Content-Length: {len(body)}") as client:
            client.sendall(body)
            assert backend.entered.wait(30)
        assert eventually(lambda: server.metric("harken_cancelled_total", kind="file") == 1)
        assert server.metric("harken_queue_jobs") == 1, "the engine still reads the file"
        backend.gate.set()
        assert eventually(lambda: server.metric("harken_queue_jobs") == 0)
        assert backend.n_windows == 1
        assert eventually(lambda: server.metric("harken_requests_total", route=PATH, status="499"))


def test_a_client_that_goes_away_while_it_sends_leaves_nothing() -> None:
    with serving_tones() as server:
        with connection(server, f"Content-Length: {len(FORM)}") as client:
            client.sendall(FORM[: len(FORM) // 2])
        assert eventually(lambda: server.metric("harken_cancelled_total", kind="file") == 1)
        assert server.metric("harken_models_loaded") == 0


def test_metrics_count_what_was_transcribed() -> None:
    with serving_tones(GatedToneBackend()) as server, httpx.Client(base_url=server.url) as http:
        for stream in ("false", "true"):
            fields, files = FIELDS | {"stream": stream}, {"file": wav(SPEECH.samples)}
            assert http.post(PATH, data=fields, files=files).status_code == 200
        assert server.metric("harken_audio_seconds_total", kind="file") == 80
        assert server.metric("harken_segments_total", kind="file") == 20
        assert server.metric("harken_first_segment_seconds_count") == 2
        assert server.metric("harken_cancelled_total", kind="file") == 0
        assert eventually(lambda: server.metric("harken_requests_total", route=PATH, status="200") == 2)


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="this system does not list open files")
def test_uploads_leave_no_file_open_however_they_end() -> None:
    large = wav(np.zeros(1_200_000, np.float32))  # goes to the disk
    form = form_body(('name="model"', b"tones"), ('name="file"; filename="x"', large))
    bodies = [form, form[: len(form) // 2], form.replace(b"tones", b"other"), form.replace(b"WAVE", b"WAVY")]
    with serving_tones() as server, httpx.Client(base_url=server.url) as http:
        assert http.get("/healthz").status_code == 200
        for repetition in range(3):
            if repetition == 1:  # the first one opened what stays open: the model, threads
                before = len([*DESCRIPTORS.iterdir()])
            for body in bodies:
                status = http.post(PATH, content=body, headers=CONTENT_TYPE).status_code
                assert status == {0: 200, 1: 400, 2: 404, 3: 400}[bodies.index(body)]
            with connection(server, f"Content-Length: {len(form)}") as client:
                client.sendall(form[:-10])
        assert eventually(lambda: server.metric("harken_cancelled_total", kind="file") == 3)
        assert eventually(lambda: len([*DESCRIPTORS.iterdir()]) <= before)


def test_heartbeats_are_sent_while_there_is_nothing_else() -> None:
    backend = GatedToneBackend()
    with serving_tones(backend) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        backend.gate.clear()
        fields, files = FIELDS | {"stream": "true"}, {"file": wav(SPEECH.samples)}

        def ask() -> list[str]:
            with http.stream("POST", PATH, data=fields, files=files) as answer:
                lines = answer.iter_lines()
                assert [next(lines) for _ in range(4)] == [": ", "", ": ", ""]
                backend.gate.set()
                return [*lines]

        with ThreadPoolExecutor(1) as clients:
            asking = clients.submit(ask)
            server.leap_until(backend.gate.is_set)
            events = [json.loads(line[6:]) for line in asking.result() if line.startswith("data: ")]
    assert events[-1]["text"] == transcribe_tones(SPEECH, positions=200)


def test_pauses_lose_no_result() -> None:
    async def scene() -> None:
        given: asyncio.Queue[int | None] = asyncio.Queue()

        async def results() -> Any:
            while (result := await given.get()) is not None:
                yield result

        paced = with_pauses(results(), 15.0)
        for n in range(3):
            waiting = asyncio.ensure_future(anext(paced))
            await leap(16)
            assert await waiting is None
            given.put_nowait(n)
            assert await anext(paced) == n
        given.put_nowait(None)
        assert [result async for result in paced] == []

    with asyncio.Runner(loop_factory=LeapLoop) as runner:
        runner.run(scene())


def test_a_slow_reader_halts_its_own_file_and_loses_nothing() -> None:
    """The reader is a part of the server here, so that no buffer of the system is between them."""
    backend = GatedToneBackend()
    sent = bytearray()

    async def ask(server: Serving, may_read: asyncio.Event) -> None:
        messages = iter([{"type": "http.request", "body": STREAMED_FORM, "more_body": False}])

        async def receive() -> Any:
            return next(messages, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            await may_read.wait()
            sent.extend(message.get("body", b""))

        headers = [(b"content-type", FORM_TYPE.encode()), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "query_string": b""}
        await make_app(server.service)(scope, receive, send)

    with serving_tones(backend) as server:
        may_read = asyncio.Event()
        asking = asyncio.run_coroutine_threadsafe(ask(server, may_read), server.loop)
        assert eventually(lambda: backend.n_windows > MAX_UPDATES)
        other = httpx.post(f"{server.url}{PATH}", data=FIELDS, files={"file": wav(speak(3).samples)})
        assert other.json()["text"] == "ba ha na"
        assert backend.n_windows <= MAX_UPDATES + 4  # one sent, one taken, one begun, and that of the other
        server.loop.call_soon_threadsafe(may_read.set)
        asking.result(30)
    *deltas, done = map(json.loads, event_lines(sent.decode()))
    assert (
        "".join(delta["delta"] for delta in deltas) == done["text"] == transcribe_tones(SPEECH, positions=200)
    )


def test_a_full_queue_tells_when_to_come_again() -> None:
    backend = GatedToneBackend()
    options = ServeOptions(preload=False, max_queue_s=50)
    with serving_tones(backend, options) as server:
        backend.gate.clear()
        with connection(server, f"Content-Length: {len(FORM)}") as client:
            client.sendall(FORM)
            assert backend.entered.wait(30)
            refused = httpx.post(f"{server.url}{PATH}", content=FORM, headers=CONTENT_TYPE)
        backend.gate.set()
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1


def test_a_file_that_the_end_of_the_server_cuts_off_is_to_be_sent_again() -> None:
    backend = GatedToneBackend()
    with serving_tones(backend) as server, ThreadPoolExecutor(1) as clients:
        backend.gate.clear()
        post = partial(httpx.post, content=FORM, headers=CONTENT_TYPE, timeout=60)
        asking = clients.submit(post, f"{server.url}{PATH}")
        assert backend.entered.wait(30)
        closing = asyncio.run_coroutine_threadsafe(server.service.close(), server.loop)
        assert eventually(lambda: server.metric("harken_models_loaded") == 0)
        backend.gate.set()
        closing.result(30)
        answer = asking.result(30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "5"


def test_an_unforeseen_error_tells_nothing_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ToneBackend):
        def encode(self, *given: Any) -> Any:
            raise RuntimeError("/secret/path, and what was said")

    with serving_tones(Broken()) as server:
        answer = httpx.post(f"{server.url}{PATH}", data=FIELDS, files={"file": wav(SPEECH.samples)})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-should-retry"] == "false"
    assert "unforeseen error" in caplog.messages
    assert answer.headers["x-request-id"]
    assert server.metric("harken_requests_total", route=PATH, status="500") == 1


def test_a_sender_that_pauses_for_long_is_refused() -> None:
    with (
        serving_tones() as server,
        ThreadPoolExecutor(1) as clients,
        connection(server, f"Content-Length: {len(FORM)}") as client,
    ):
        client.sendall(FORM[:100])
        answer = clients.submit(client.recv, 10_000)
        server.leap_until(answer.done)
        assert answer.result().startswith(b"HTTP/1.1 408")


def test_a_client_that_goes_away_in_a_body_is_no_fault_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    path = "/v1/realtime/client_secrets"
    with serving_tones() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{}}".encode())
        assert eventually(lambda: server.metric("harken_requests_total", route=path, status="499") == 1)
    assert "unforeseen error" not in caplog.messages

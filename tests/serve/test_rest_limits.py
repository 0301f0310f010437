"""Files that are too large or too long, clients that go away, and clients that read slowly."""

import io
import socket
import sys
from contextlib import contextmanager
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import av
import numpy as np
import pytest
from served_audio import FORM_TYPE, file_form, wav
from tone_server import FIELDS, PATH, check_refused, events_of, post, serving_tones, speak

from cli_runner import eventually
from fakes.tone_backend import ToneBackend
from processes import no_file_above

DESCRIPTORS = Path("/proc/self/fd")
HOURS = 8
BLOCK_SAMPLES = 65_535
SPEECH = speak(100)  # 40 s, ten windows
FORM = file_form(wav(SPEECH.samples), **FIELDS)
CONTENT_TYPE = {"content-type": FORM_TYPE}


@cache
def silent_flac(*, tells_duration=True):
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
def connection(server, headers, path=PATH):
    """Connect, and send the beginning of a request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {FORM_TYPE}\r\n{headers}\r\n\r\n"
        client.sendall(head.encode())
        yield client


def test_a_file_that_is_too_large_is_refused_before_its_end():
    with serving_tones(max_upload_mb=0.05) as server:
        with connection(server, "Content-Length: 60000") as client:  # and nothing of the body
            assert client.recv(1000).startswith(b"HTTP/1.1 413")
        with connection(server, "Transfer-Encoding: chunked") as client:
            for start in range(0, 60_000, 1000):
                client.sendall(b"3e8\r\n" + FORM[start : start + 1000] + b"\r\n")  # and no end
            assert client.recv(1000).startswith(b"HTTP/1.1 413")
        refused = server.http.post(PATH, content=FORM, headers=CONTENT_TYPE)
        line = check_refused(refused, 413, "request_too_large", "file")
        assert line == "the request is larger than 0.05 MB, which are allowed"


def test_who_reads_only_after_the_whole_body_reads_why_it_was_refused():
    body = bytes(20_000_000)  # more than the buffers between the two take
    with (
        serving_tones(max_upload_mb=0.05) as server,
        connection(server, f"Connection: close\r\nContent-Length: {len(body)}") as client,
    ):
        client.sendall(body)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 413")


def test_hours_of_silence_in_kilobytes_are_refused_by_their_header():
    with serving_tones() as server:
        assert len(silent_flac()) < 50_000
        check_refused(post(server.http, silent_flac()), 413, "audio_too_long", "file")
        assert server.metric("harken_compute_seconds_total", kind="file") == 0


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_duration_that_the_header_conceals_ends_the_decoding_at_the_limit(stream):
    max_audio_s, step_s = 1_000.0, 11 * BLOCK_SAMPLES / 1_000  # ten blocks a step
    before = peak_memory_bytes()
    with serving_tones(max_audio_s=max_audio_s) as server:
        wanted = {"stream": stream, "include[]": "harken.events"}
        answer = post(server.http, silent_flac(tells_duration=False), **wanted)
        if stream == "true":
            *progress, end = events_of(answer.text)
            assert {event["type"] for event in progress} == {"harken.progress"}
            assert progress[0]["duration_s"] is None
            assert end["error"]["code"] == "audio_too_long"
        else:
            check_refused(answer, 413, "audio_too_long", "file")
        assert 0 < server.metric("harken_audio_seconds_total", kind="file") < max_audio_s + step_s
        assert eventually(lambda: server.metric("harken_queue_jobs") == 0)
    assert peak_memory_bytes() - before < 150e6  # all of it would take 1.8 GB


def peak_memory_bytes():
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def test_a_client_that_goes_away_while_it_sends_leaves_nothing(caplog):
    with serving_tones() as server:
        for path, body in ((PATH, FORM), ("/v1/realtime/client_secrets", b"{}")):
            gone = partial(server.metric, "harken_requests_total", route=path, status="499")
            with connection(server, f"Content-Length: {len(body)}", path) as client:
                client.sendall(body[: len(body) // 2])
            assert eventually(gone)
        assert server.metric("harken_cancelled_total", kind="file") == 1
        assert server.metric("harken_models_loaded") == 0
    assert "unforeseen error" not in caplog.messages


def test_metrics_count_what_was_transcribed():
    with serving_tones(ToneBackend(positions=200)) as server:
        for stream in ("false", "true"):
            assert post(server.http, wav(SPEECH.samples), stream=stream).status_code == 200
        assert server.metric("harken_audio_seconds_total", kind="file") == 80
        assert server.metric("harken_segments_total", kind="file") == 20
        assert server.metric("harken_first_segment_seconds_count") == 2
        assert server.metric("harken_cancelled_total", kind="file") == 0
        assert eventually(lambda: server.metric("harken_requests_total", route=PATH, status="200") == 2)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_an_upload_for_which_the_disk_has_no_room_may_be_sent_again():
    with serving_tones() as server, no_file_above(1 << 19):
        answer = post(server.http, wav(SPEECH.samples))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "out_of_space")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="this system does not list open files")
def test_uploads_leave_no_file_open_however_they_end():
    large = wav(np.zeros(1_200_000, np.float32))  # goes to the disk
    form = file_form(large, model="tones")
    bodies = [form, form[: len(form) // 2], form.replace(b"tones", b"other"), form.replace(b"WAVE", b"WAVY")]
    with serving_tones() as server:
        assert server.http.get("/healthz").status_code == 200
        for repetition in range(2):
            if repetition == 1:  # the first one opened what stays open: the model, threads
                before = len([*DESCRIPTORS.iterdir()])
            for body in bodies:
                status = server.http.post(PATH, content=body, headers=CONTENT_TYPE).status_code
                assert status == (200 if body is form else 400)
            with connection(server, f"Content-Length: {len(form)}") as client:
                client.sendall(form[:-10])
        assert eventually(lambda: server.metric("harken_cancelled_total", kind="file") == 2)
        assert eventually(lambda: len([*DESCRIPTORS.iterdir()]) <= before)

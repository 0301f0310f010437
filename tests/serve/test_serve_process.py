"""`harken serve` as a process: the address that it prints, what it refuses, and its end at a signal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from harken.audio import load_audio
from real_models import EXAMPLE

WAIT_S = 60.0
"""Longest wait; only a failure takes as long."""
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "harken", "serve", "--threads", "1", *options]


@contextmanager
def serve(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command on a free port; yield its address and the process, once a model is loaded."""
    process = subprocess.Popen(command("--port", "0", *options), stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found
        ready = httpx.Client(transport=httpx.HTTPTransport(retries=3), timeout=WAIT_S)
        with closing(ready):
            while ready.get(f"{found[0]}/readyz").status_code == 503:
                assert process.poll() is None
        yield found[0], process
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stderr.close()


def refused(*options: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        command(*options), capture_output=True, text=True, timeout=WAIT_S, env=os.environ | (environment or {})
    )
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        code, line = refused("--port", str(port))
    assert code == 2
    assert f"--port {port}: allowed is a port of 127.0.0.1 that is free" in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--host", "0.0.0.0"), "--host '0.0.0.0': allowed is an address of this machine alone"),
        (
            ("--host", "no.such.name.invalid", "--no-auth"),
            "--host 'no.such.name.invalid': allowed is an address",
        ),
        (("--certfile", "cert.pem"), "--certfile 'cert.pem': allowed is a file together with keyfile"),
        (
            ("--alias", "whisper-1=large"),
            "--alias 'whisper-1=large': allowed is NAME=MODEL, with a MODEL of tiny.en",
        ),
        (("--max-streams", "0"), "--max-streams 0: allowed is an integer from 1 on"),
        (("--log-format", "xml"), "--log-format 'xml': allowed is text or json"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: tuple[str, ...], expected: str) -> None:
    code, line = refused(*options)
    assert code == 2
    assert expected in line


def test_a_model_that_does_not_exist_ends_the_server() -> None:
    code, line = refused("--port", "0", "--model", "no-such-model", "--no-download")
    assert code == 4
    assert "no-such-model" in line


@pytest.mark.real
def test_a_key_of_the_environment_is_asked_for_and_stays_out_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARKEN_API_KEY", "secret-key")
    with serve("--log-format", "json") as (address, process):
        assert httpx.get(f"{address}/v1/models").status_code == 401
        allowed = httpx.get(f"{address}/v1/models", headers={"authorization": "Bearer secret-key"})
        assert [model["id"] for model in allowed.json()["data"]] == ["tiny.en"]
        with EXAMPLE.open("rb") as file:
            reply = httpx.post(
                f"{address}/v1/audio/transcriptions",
                headers={"x-api-key": "secret-key"},
                data={"model": "whisper-1"},
                files={"file": file},
                timeout=WAIT_S,
            )
        assert "country" in reply.json()["text"]
        process.terminate()
        assert process.stderr
        log = process.stderr.read()
        assert process.wait(WAIT_S) == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"/v1/models", "/v1/audio/transcriptions"} <= {line.get("route") for line in lines}
    assert {200, 401} <= {line.get("status") for line in lines}
    assert "secret" not in log
    assert "country" not in log


@needs_signals
@pytest.mark.real
def test_sigterm_sends_the_finals_of_streams_and_finishes_files(tmp_path: Path) -> None:
    pcm = (load_audio(EXAMPLE) * 32767).astype("<i2")
    hello = {"type": "hello", "finals": "streamed", "audio": {"format": "s16le", "rate": 16000, "channels": 1}}

    async def run(address: str, process: subprocess.Popen[str]) -> tuple[list[str], str]:
        async with (
            connect(f"ws{address.removeprefix('http')}/v1/stream") as live,
            httpx.AsyncClient() as client,
        ):
            await live.send(json.dumps(hello))
            await live.send(pcm[: 8 * 16_000].tobytes())
            await first_interim(live)
            form = {"model": "whisper-1"}
            files = {"file": EXAMPLE.read_bytes()}
            request = client.post(f"{address}/v1/audio/transcriptions", data=form, files=files, timeout=WAIT_S)
            reply = asyncio.create_task(request)
            while (await client.get(f"{address}/readyz")).json()["files"] == 0 and not reply.done():
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            messages: list[dict[str, Any]] = []
            with pytest.raises(ConnectionClosedError, match="1012"):
                await receive_all(live, messages)
            finals = [each["segment"]["text"] for each in messages if each.get("event") == "final_segment"]
            return finals, (await reply).json()["text"]

    with serve() as (address, process):
        finals, text = asyncio.run(run(address, process))
        assert process.wait(WAIT_S) == 0
    assert "fellow Americans" in "".join(finals)
    assert "country" in text


async def receive_all(live: ClientConnection, messages: list[dict[str, Any]]) -> None:
    async for message in live:
        messages.append(json.loads(message))


async def first_interim(live: ClientConnection) -> None:
    async for message in live:
        fields = json.loads(message)
        if fields.get("event") == "interim" and fields["committed"]:
            return


@needs_signals
@pytest.mark.real
def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    silence = np.zeros(16_000, "<i2").tobytes()
    hello = {"type": "hello", "audio": {"format": "s16le", "rate": 16000, "channels": 1}}

    async def run(address: str, process: subprocess.Popen[str]) -> None:
        async with (
            connect(f"ws{address.removeprefix('http')}/v1/stream") as live,
            httpx.AsyncClient() as client,
        ):
            await live.send(json.dumps(hello))
            await live.send(silence)
            long = np.tile(load_audio(EXAMPLE), 60)
            wav = tmp_path / "long.wav"
            write_wav(wav, (long * 32767).astype("<i2"))
            files = {"file": wav.read_bytes()}
            form = {"model": "whisper-1"}
            reply = asyncio.create_task(
                client.post(f"{address}/v1/audio/transcriptions", data=form, files=files, timeout=WAIT_S)
            )
            while (await client.get(f"{address}/readyz")).json()["files"] == 0:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            while (await client.get(f"{address}/readyz")).json()["status"] != "draining":
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(reply, return_exceptions=True)

    with serve("--drain-s", "50") as (address, process):
        asyncio.run(run(address, process))
        assert process.wait(WAIT_S) == 143
        assert process.stderr
        assert "ended before all work was done" in process.stderr.read()


def write_wav(path: Path, pcm: np.ndarray) -> None:
    import wave

    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(pcm.tobytes())

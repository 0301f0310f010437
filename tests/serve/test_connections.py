"""Two hundred connections that come and go leave threads, descriptors, tasks and memory as they were."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_client import LiveClient
from tone_server import eventually

from fakes.live_recognizer import LiveRecognizer
from serving import Serving, serving

DESCRIPTORS = Path("/proc/self/fd")
HELLO = {"type": "hello", "audio": {"format": "s16le", "rate": 16000, "channels": 1}}
COUNT = 200


@pytest.fixture
def server() -> Iterator[Serving]:
    recognizer: Any = LiveRecognizer()
    with serving(lambda id: recognizer) as server:
        yield server


def come_and_go(server: Serving, count: int) -> None:
    """Connect in four ways in turn: a whole stream, one that vanishes, one that says nothing, and a request."""
    for i in range(count):
        match i % 4:
            case 0:
                with LiveClient(server, **HELLO) as client:
                    client.audio(bytes(3200))
                    client.send(type="end")
                    while client.receive().get("type") != "done":
                        pass
            case 1:
                with LiveClient(server, **HELLO) as client:
                    client.audio(bytes(3200))
                    client.vanish()
            case 2:
                with LiveClient(server):
                    pass
            case 3:
                form = {"model": "whisper-1"}
                reply = httpx.post(
                    f"{server.url}/v1/audio/transcriptions", data=form, files={"file": b"no audio"}
                )
                assert reply.status_code == 400


def counts(server: Serving) -> tuple[int, int, int]:
    """Return the numbers of threads, of open files, and of tasks in the server's loop."""

    async def n_tasks() -> int:
        return len(asyncio.all_tasks())

    gc.collect()
    return threading.active_count(), len([*DESCRIPTORS.iterdir()]), server.run(n_tasks)


@pytest.mark.nightly
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
def test_connections_leave_nothing(server: Serving) -> None:
    object.__setattr__(server.service.options, "resume_s", 0.05)  # those that vanished are forgotten soon
    come_and_go(server, 20)
    assert eventually(lambda: server.service.admission.n_streams == 0)
    before = counts(server)
    tracemalloc.start()
    try:
        come_and_go(server, COUNT // 2)
        first_bytes, _ = tracemalloc.get_traced_memory()
        come_and_go(server, COUNT // 2)
        assert eventually(lambda: server.service.admission.n_streams == 0)
        assert eventually(lambda: counts(server) <= before), f"{counts(server)}, before {before}"
        last_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert last_bytes < first_bytes + 500_000

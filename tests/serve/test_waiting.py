"""Waiting for the first of several coroutines, and for a thread that nobody need wait for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from harken.serve.waiting import first_of, in_daemon_thread


def test_the_first_ends_the_others() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def short() -> None:
        await asyncio.sleep(0)

    assert asyncio.run(first_of(endless(), short())) == 1
    assert ended == ["endless"]


def test_its_error_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        asyncio.run(first_of(asyncio.sleep(60), fail()))


def test_a_thread_returns_or_raises() -> None:
    assert asyncio.run(in_daemon_thread(lambda: threading.current_thread().name, "loading")) == "loading"
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_daemon_thread(lambda: 1 / 0, "loading"))


def test_the_end_waits_for_no_thread() -> None:
    release = threading.Event()

    async def leave() -> None:
        waiting = asyncio.create_task(in_daemon_thread(lambda: release.wait(60), "loading"))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "loading"]
    release.set()
    thread.join(60)
    assert not thread.is_alive()

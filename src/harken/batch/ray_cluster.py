"""Workers as actors of a Ray cluster: nodes may come and go."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harken.batch.plan import Shard
from harken.batch.rows import ShardReport
from harken.batch.worker import Progress, Worker, WorkerSettings
from harken.batch.workers import READY, Broken, Handle, Member, Pool, broken_by
from harken.errors import BackendUnavailable, HarkenError, importing

MOST_THREADS = 4
"""Threads of a worker by default, where nodes have as many processors."""
PROGRESS_EVERY_S = 5.0
CONNECT_S = 15.0
"""Time that the head of a cluster may take to answer."""


class _Actor:
    """A worker in a process of Ray; one thread works, another one answers questions."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker: Worker | None = None
        self._progress = Progress()

    def load(self) -> str | HarkenError:
        """Load the model; return that it is ready, or the error if it cannot be loaded."""
        try:
            self._worker = Worker(self._settings)
        except HarkenError as error:
            return error
        return READY

    def transcribe(self, shard: Shard) -> ShardReport | Broken:
        """Transcribe a shard; errors are returned, so that no type of Ray wraps them."""
        assert self._worker
        self._progress = Progress()
        try:
            return self._worker.transcribe(shard, self._set_progress)
        except Exception as error:
            return broken_by(error)

    def progress(self) -> Progress:
        """Return how far the shard is."""
        return self._progress

    def _set_progress(self, progress: Progress) -> None:
        self._progress = progress


class RayWorkers(Pool):
    """Actors of a cluster, each with as many processors as threads.

    `BackendUnavailable` says that Ray is not installed, or that there is no cluster at the address.
    """

    most_start_failures = 5

    def __init__(self, settings: WorkerSettings, address: str, count: int) -> None:
        self._ray = _connect(address)
        self._settings = settings
        options: dict[str, Any] = {"num_cpus": settings.threads, "max_concurrency": 2, "max_restarts": 0}
        if str(settings.recipe.load.get("device", "")).startswith("cuda"):
            options["num_gpus"] = 1
        self._actor_class = self._ray.remote(**options)(_Actor)
        self._by_reference: dict[Any, Member] = {}
        self._asked_s: dict[Member, float] = {}
        super().__init__(count)

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Wait for answers of actors; those that are lost are replaced."""
        self._ask_progress()
        ready, _ = self._ray.wait([*self._by_reference], num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait([*self._by_reference], num_returns=len(self._by_reference), timeout=0)
        for reference in ready:
            each = self._by_reference.pop(reference, None)
            if each is None:  # of an actor that was lost a moment ago
                continue
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                last_line = str(error).strip().rpartition("\n")[2].strip()  # where a traceback has its error
                why = "" if each.is_ready else f": {last_line}"
                self._lose(each, f"its worker was lost: {type(error).__name__}{why}", handle)
            else:
                self._take(each, answer, handle)

    def _spawn(self) -> Member:
        each = Member(self._actor_class.remote(self._settings))
        self._ask("load", each)
        return each

    def _send(self, each: Member, shard: Shard) -> None:
        self._ask("transcribe", each, shard)

    def _kill(self, each: Member) -> None:
        self._ray.kill(each.place)

    def _forget(self, each: Member) -> None:
        self._asked_s.pop(each, None)
        self._by_reference = {
            reference: asked for reference, asked in self._by_reference.items() if asked is not each
        }

    def _ask(self, what: str, each: Member, *arguments: object) -> None:
        self._asked_s[each] = time.monotonic()
        self._by_reference[getattr(each.place, what).remote(*arguments)] = each

    def _ask_progress(self) -> None:
        """Ask busy actors for their progress, each every few seconds."""
        for each in self._members:
            if each.shard and time.monotonic() - self._asked_s[each] > PROGRESS_EVERY_S:
                self._ask("progress", each)


def room_for_workers(address: str, threads: int | None) -> tuple[int, int]:
    """Return the threads of a worker, and the number of workers for which a cluster has room.

    By default they have four threads, or as many as the smallest node has processors. It raises as `RayWorkers`.
    """
    nodes = _connect(address).nodes()
    sizes = [int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]]
    threads = threads or min(MOST_THREADS, *(size for size in sizes if size), MOST_THREADS)
    return threads, max(sum(size // threads for size in sizes), 1)


def _connect(address: str) -> Any:
    """Return the module of Ray, connected to a cluster; raises as `RayWorkers`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with importing("ray", "a cluster"):
        import ray
    if not ray.is_initialized():
        _check_reachable(address)
        try:
            with _keeping_sigterm():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            if address == "auto" and isinstance(error, ConnectionError):
                reason = "this machine is part of none; allowed is also the address of its head, HOST:PORT"
            raise BackendUnavailable(f"ray {address!r}: no cluster can be reached: {reason}") from error
    return ray


def _check_reachable(address: str) -> None:
    """Raise `BackendUnavailable` if nothing listens at an address; Ray itself tries for more than a minute."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BackendUnavailable(f"ray {address!r}: no cluster can be reached: {reason}") from error


@contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces by one that ends the process with status 15 or 1."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)

"""Workers as actors of a Ray cluster: nodes may come and go."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harken.batch.rows import ShardReport
from harken.batch.worker import Progress, Task, Worker, WorkerSettings
from harken.batch.workers.protocol import Advanced, Broken, Handle, Published, broken_by
from harken.errors import BackendUnavailable, HarkenError, WorkerError, install_hint

MOST_THREADS = 4
"""Threads of a worker by default, where nodes have as many processors."""
PROGRESS_EVERY_S = 5.0
MAX_START_FAILURES = 5
"""Actors that may fail, one after another, before they have loaded the model."""
CONNECT_S = 15.0
"""Time that the head of a cluster may take to answer."""


class _Actor:
    """A worker in a process of Ray; one thread works, another one answers questions."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker: Worker | None = None
        self._progress = Progress(0.0, 0)

    def load(self) -> HarkenError | None:
        """Load the model; return the error if it cannot be loaded."""
        try:
            self._worker = Worker(self._settings)
        except HarkenError as error:
            return error
        return None

    def transcribe(self, task: Task) -> ShardReport | Broken:
        """Do a task; errors are returned, so that no type of Ray wraps them."""
        assert self._worker
        self._progress = Progress(0.0, 0)
        try:
            return self._worker.transcribe(task, self._set_progress)
        except Exception as error:
            return broken_by(task, error)

    def progress(self) -> Progress:
        """Return how far the task is."""
        return self._progress

    def _set_progress(self, progress: Progress) -> None:
        self._progress = progress


@dataclass(eq=False)
class _Handle:
    actor: Any
    task: Task | None = None
    is_ready: bool = False
    asked_s: float = field(default_factory=time.monotonic)


class RayWorkers:
    """Actors of a cluster, each with as many processors as threads.

    Parameters
    ----------
    settings : callable
        Returns the settings of workers of so many threads.
    address : str
        Address of the cluster, or ``auto``.
    count : int
        Number of actors; 0 for as many as the cluster has room for.
    most : int
        Greatest number of actors of any use.
    threads : int or None
        Threads of each; by default four, or those of the smallest node.

    Raises
    ------
    BackendUnavailable
        If Ray is not installed, or there is no cluster at the address.
    """

    def __init__(
        self,
        settings: Callable[[int], WorkerSettings],
        address: str,
        count: int,
        most: int,
        threads: int | None,
    ) -> None:
        self._ray = _connect(address)
        threads, room = _room(self._ray, threads)
        count = min(count or room, most)
        self._settings = settings(threads)
        options: dict[str, Any] = {"num_cpus": threads, "max_concurrency": 2, "max_restarts": 0}
        if str(self._settings.recipe.load.get("device", "")).startswith("cuda"):
            options["num_gpus"] = 1
        self._actor_class = self._ray.remote(**options)(_Actor)
        self._start_failures = 0
        self._handles: list[_Handle] = []
        self._by_reference: dict[Any, tuple[str, _Handle]] = {}
        for _ in range(count):
            self._spawn()

    @property
    def n_free(self) -> int:
        """Number of actors that have loaded the model and have no task."""
        return sum(each.is_ready and each.task is None for each in self._handles)

    @property
    def n_alive(self) -> int:
        """Number of actors that have loaded the model."""
        return sum(each.is_ready for each in self._handles)

    def start(self, task: Task) -> None:
        """Give a task to a free actor."""
        free = next(each for each in self._handles if each.is_ready and each.task is None)
        free.task, free.asked_s = task, time.monotonic()
        self._ask("transcribe", free, task)

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Wait for answers of actors; those that are lost are replaced.

        Raises
        ------
        HarkenError
            If no actor can load the model.
        WorkerError
            If several actors in turn are lost while they load it.
        """
        self._ask_progress()
        ready, _ = self._ray.wait([*self._by_reference], num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait([*self._by_reference], num_returns=len(self._by_reference), timeout=0)
        for reference in ready:
            kind, each = self._by_reference.pop(reference, (None, None))
            if kind is None or each is None:  # of an actor that was lost a moment ago
                continue
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._replace(each, error, handle)
            else:
                self._take(kind, each, answer, handle)

    def give_up(self, task: Task) -> None:
        """Kill the actor of a task."""
        for each in self._handles:
            if each.task is task:
                self._ray.kill(each.actor)

    def close(self) -> None:
        """Kill all actors."""
        for each in self._handles:
            self._ray.kill(each.actor)

    def _spawn(self) -> None:
        each = _Handle(self._actor_class.remote(self._settings))
        self._handles.append(each)
        self._ask("load", each)

    def _ask(self, kind: str, each: _Handle, *arguments: object) -> None:
        self._by_reference[getattr(each.actor, kind).remote(*arguments)] = (kind, each)

    def _ask_progress(self) -> None:
        """Ask busy actors for their progress, each every few seconds."""
        now_s = time.monotonic()
        for each in self._handles:
            if each.task and now_s - each.asked_s > PROGRESS_EVERY_S:
                each.asked_s = now_s
                self._ask("progress", each)

    def _take(self, kind: str, each: _Handle, answer: object, handle: Handle) -> None:
        task = each.task
        if kind == "load":
            if isinstance(answer, HarkenError):
                self._drop(each)
                self._count_start_failure(answer)
                self._spawn()
                return
            each.is_ready, self._start_failures = True, 0
        elif task and isinstance(answer, Progress):
            handle(Advanced(task, answer))
        elif kind == "transcribe" and task:
            each.task = None
            if isinstance(answer, Broken):
                handle(answer)
            elif isinstance(answer, ShardReport):
                handle(Published(task, answer))

    def _replace(self, each: _Handle, error: Exception, handle: Handle) -> None:
        """Replace an actor that is lost, with its process or with its node; its task is broken."""
        if each not in self._handles:
            return
        self._drop(each)
        reason = f"its worker was lost: {type(error).__name__}"
        if not each.is_ready:
            last_line = str(error).strip().rpartition("\n")[2].strip()  # where a traceback has its error
            self._count_start_failure(
                WorkerError(f"actors in turn ended while they loaded the model: {reason}: {last_line}")
            )
        self._spawn()
        if each.task:
            handle(Broken(each.task, reason))

    def _drop(self, each: _Handle) -> None:
        self._handles.remove(each)
        self._by_reference = {
            reference: asked for reference, asked in self._by_reference.items() if asked[1] is not each
        }
        self._ray.kill(each.actor)

    def _count_start_failure(self, error: HarkenError) -> None:
        """Raise the error of an actor that could not load the model, unless others could."""
        self._start_failures += 1
        most = MAX_START_FAILURES if self.n_alive or isinstance(error, WorkerError) else 1
        if self._start_failures >= most:
            raise error


def count_room(address: str, threads: int | None) -> int:
    """Return the number of workers for which a cluster has room.

    Parameters
    ----------
    address : str
    threads : int or None
        Threads of each.

    Raises
    ------
    BackendUnavailable
        If Ray is not installed, or there is no cluster at the address.
    """
    return _room(_connect(address), threads)[1]


def _room(ray: Any, threads: int | None) -> tuple[int, int]:
    """Return the threads of a worker, and the number of workers for which a cluster has room."""
    sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    threads = threads or min(MOST_THREADS, *(size for size in sizes if size), MOST_THREADS)
    return threads, max(sum(size // threads for size in sizes), 1)


def _connect(address: str) -> Any:
    """Return the module of Ray, connected to a cluster.

    Raises
    ------
    BackendUnavailable
        If it is not installed, or there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise BackendUnavailable(
            f"a cluster needs Ray, which is missing; {install_hint('ray')} installs it"
        ) from error
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
    """Check that something listens at an address; Ray itself tries for more than a minute.

    Raises
    ------
    BackendUnavailable
        If nothing does.
    """
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

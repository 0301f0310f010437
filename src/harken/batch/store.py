"""The output folder of a batch, local or by URL: every file in it is whole or absent."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from harken.batch.locations import file_system, is_url, join, one_line, read_bytes, without_file_scheme
from harken.errors import HarkenError, OutputError, PlanError
from harken.files import make_folder, write_atomic

PLAN_FILE = "_plan.jsonl"
LOCK_FILE = "_lock"
LEASE_FILE = "_driver.json"
LEASE_S = 120.0
"""Time after which a driver that has not renewed its lease counts as dead."""
_PUT_AGAIN_S = (0.5, 2.0)
"""Waits before an object is written once more."""
_RENEW_AGAIN_S = 5.0
_LEASE_FIELDS: dict[str, Callable[[Any], Any]] = {"machine": str, "process": int, "token": str, "time": float}


class ShardFiles(NamedTuple):
    """The folder of one kind of files, of which each shard has one, and the ending of their names."""

    folder: str
    suffix: str

    def of(self, shard: str) -> str:
        """Return the name of the file of a shard."""
        return f"{self.folder}/{shard}{self.suffix}"


ROWS, REPORT, PARQUET = SHARD_FILES = (
    ShardFiles("shards", ".jsonl"),
    ShardFiles("reports", ".json"),
    ShardFiles("parquet", ".parquet"),
)


class Store:
    """A folder of whole files, by path or URL.

    A local file is renamed when it is complete; an object of a store is written by one request.
    """

    def __init__(self, folder: str) -> None:
        folder = without_file_scheme(folder)
        self.folder = folder.rstrip("/") if is_url(folder) else os.path.abspath(folder)
        self._renew_at_s: float | None = None
        self._lease = {"machine": _machine(), "process": os.getpid(), "token": secrets.token_hex(8)}

    def publish(self, name: str, chunks: Iterable[str | bytes]) -> None:
        """Write a file, all of it or nothing; an `OutputError` says why it cannot be written."""
        location = join(self.folder, name)
        if not is_url(location):
            path = Path(location)
            make_folder(path.parent)
            write_atomic(path, chunks, durable=True)
            return
        content = b"".join(
            chunk.encode(errors="replace") if isinstance(chunk, str) else chunk for chunk in chunks
        )
        for wait_s in (*_PUT_AGAIN_S, None):
            try:
                system, path_in_system = file_system(location)
                system.pipe_file(path_in_system, content)
                return
            except Exception as error:  # whatever a file system raises
                if wait_s is None or isinstance(error, PermissionError | FileNotFoundError | HarkenError):
                    raise OutputError(f"{location}: cannot be written: {one_line(error)}") from error
            time.sleep(wait_s)

    def remove(self, name: str) -> None:
        """Remove a file if it is there; an `OutputError` says why it cannot be removed."""
        location = join(self.folder, name)
        with suppress(FileNotFoundError), _naming(location, "removed", OutputError):
            if is_url(location):
                system, path = file_system(location)
                system.rm_file(path)
            else:
                os.remove(location)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none; a `PlanError` says why it cannot be read."""
        location = join(self.folder, name)
        with suppress(FileNotFoundError), _naming(location, "read", PlanError):
            return read_bytes(location)
        return None

    def shards(self, files: ShardFiles) -> set[str]:
        """Return the names of the shards that have files of a kind; a `PlanError` says why they cannot be listed."""
        location, names = join(self.folder, files.folder), list[str]()
        with suppress(FileNotFoundError), _naming(location, "listed", PlanError):
            if not is_url(location):
                names = os.listdir(location)
            else:
                system, path = file_system(location)
                system.invalidate_cache()  # others write there, too
                names = [str(name).rpartition("/")[2] for name in system.ls(path, detail=False)]
                system.invalidate_cache()
        found = (name for name in names if name.endswith(files.suffix) and not name.startswith("."))
        return {name.removesuffix(files.suffix) for name in found}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other drivers away from the folder during the block.

        A lock of the operating system ends with its process, however that ends. Where there is none, as in an object
        store, it is a lease, which `renew` prolongs and which is over two minutes after the last time; of two drivers
        that take it in the same second, one finds out when it renews it. A `PlanError` names another driver, an
        `OutputError` says why the folder cannot be written.
        """
        with (None if is_url(self.folder) else self._system_lock()) or self._leased():
            yield

    def _system_lock(self) -> AbstractContextManager[object] | None:
        """Take the lock of the operating system, which ends with the context; return None where there are no locks."""
        from filelock import FileLock, Timeout

        make_folder(Path(self.folder))
        # The lock makes its file itself: one that a rename puts in its place has another lock.
        try:
            return FileLock(os.path.join(self.folder, LOCK_FILE), timeout=0).acquire()
        except Timeout:
            raise PlanError(f"{self.folder}: another 'harken batch' writes to it; wait for its end") from None
        except NotImplementedError:
            return None
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot be written: {one_line(error)}") from error

    def renew(self) -> None:
        """Prolong the lease, if there is one and it is time; a `PlanError` names another driver that has taken it.

        A store that cannot be reached is asked again soon.
        """
        if self._renew_at_s is None or time.monotonic() < self._renew_at_s:
            return
        try:
            holder = self._holder()
            if holder and holder["token"] == self._lease["token"]:
                self._write_lease()
                return
        except (OutputError, PlanError):
            self._renew_at_s = time.monotonic() + _RENEW_AGAIN_S
            return
        who = _described(holder) if holder else "which has ended since"
        raise PlanError(f"{self.folder}: another 'harken batch', {who}, has taken it over")

    @contextmanager
    def _leased(self) -> Iterator[None]:
        holder = self._holder()
        if holder and time.time() - holder["time"] < LEASE_S and not _is_dead(holder):
            raise PlanError(
                f"{self.folder}: another 'harken batch', {_described(holder)}, writes to it; its lease ends "
                f"{LEASE_S:.0f} s after it does"
            )
        self._write_lease()
        try:
            yield
        finally:
            self._renew_at_s = None
            with suppress(OutputError, PlanError):
                holder = self._holder()
                if holder and holder["token"] == self._lease["token"]:
                    self.remove(LEASE_FILE)

    def _write_lease(self) -> None:
        self.publish(LEASE_FILE, [json.dumps(self._lease | {"time": time.time()})])
        self._renew_at_s = time.monotonic() + LEASE_S / 4

    def _holder(self) -> dict[str, Any] | None:
        """Return the lease that is there; None if there is none, or something else in its file."""
        content = self.read(LEASE_FILE)
        try:
            lease = json.loads(content or b"null")
            return {name: kind(lease[name]) for name, kind in _LEASE_FIELDS.items()}
        except (ValueError, TypeError, KeyError):
            return None


@contextmanager
def _naming(location: str, what: str, kind: type[HarkenError]) -> Iterator[None]:
    """Turn whatever a file system raises into an error that names the file, unless it is not there."""
    try:
        yield
    except (FileNotFoundError, HarkenError):
        raise
    except Exception as error:
        raise kind(f"{location}: cannot be {what}: {one_line(error)}") from error


def _described(holder: dict[str, Any]) -> str:
    return f"process {holder['process']} of {holder['machine'].partition(' ')[0]}"


def _machine() -> str:
    """Return a name for where process numbers mean the same: that of the host, and of the container in it."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _is_dead(holder: dict[str, Any]) -> bool:
    """Return whether the process of a lease is one of this machine that has ended."""
    if holder["machine"] != _machine() or os.name != "posix" or holder["process"] <= 0:
        return False
    try:
        os.kill(holder["process"], 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False

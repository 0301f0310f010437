"""The output folder of a batch, local or by URL: every file in it is whole or absent."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harken.atomic import write_atomic
from harken.batch.locations import file_system, is_url, join, read_bytes
from harken.errors import OutputError, PlanError

LOCK_FILE = "_lock"
LEASE_FILE = "_driver.json"
LEASE_S = 120.0
"""Time after which a driver that has not renewed its lease counts as dead."""


class Store:
    """A folder of whole files.

    A local file is renamed when it is complete; an object of a store is written by one request.

    Parameters
    ----------
    folder : str
        Path or URL.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder if is_url(folder) else os.path.abspath(folder)
        self._renewed_s = 0.0
        self._token = f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"

    def publish(self, name: str, chunks: Iterable[str | bytes]) -> None:
        """Write a file, all of it or nothing.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        location = join(self.folder, name)
        if not is_url(location):
            path = Path(location)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(
                    f"{path.parent}: cannot be made a folder: {error.strerror or error}"
                ) from error
            write_atomic(path, chunks, durable=True)
            return
        content = b"".join(chunk.encode() if isinstance(chunk, str) else chunk for chunk in chunks)
        try:
            system, path_in_system = file_system(location)
            system.pipe_file(path_in_system, content)
        except Exception as error:  # whatever a file system raises
            raise OutputError(f"{location}: cannot be written: {type(error).__name__}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none.

        Raises
        ------
        PlanError
            If it cannot be read.
        """
        location = join(self.folder, name)
        try:
            return read_bytes(location)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PlanError(f"{location}: cannot be read: {error.strerror or error}") from error

    def stems(self, folder: str, suffix: str) -> set[str]:
        """Return the names, without the suffix, of the files of a suffix in one of its folders."""
        location = join(self.folder, folder)
        if is_url(location):
            system, path = file_system(location)
            system.invalidate_cache()
            names = [str(name).rpartition("/")[2] for name in self._list(system, path)]
        else:
            names = os.listdir(location) if os.path.isdir(location) else []
        return {
            name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith(".")
        }

    @staticmethod
    def _list(system: object, path: str) -> list[str]:
        try:
            names: list[str] = system.ls(path, detail=False)  # type: ignore[attr-defined]
        except FileNotFoundError:
            return []
        return names

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other drivers away from the folder during the block.

        A lock of the operating system ends with its process, however that ends. In an object store it is a lease, which
        `renew` prolongs and which is over two minutes after the last time.

        Raises
        ------
        PlanError
            If another driver works on it.
        OutputError
            If the folder cannot be written.
        """
        if is_url(self.folder):
            self._take_lease()
            try:
                yield
            finally:
                with suppress(Exception):
                    system, path = file_system(join(self.folder, LEASE_FILE))
                    system.rm_file(path)
            return
        from filelock import FileLock, Timeout

        lock = FileLock(join(self.folder, LOCK_FILE), timeout=0)
        try:
            # The lock makes its file itself: one that a rename puts in its place has another lock.
            os.makedirs(self.folder, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise PlanError(f"{self.folder}: another 'harken batch' writes to it; wait for its end") from None
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot be written: {error.strerror or error}") from error
        try:
            yield
        finally:
            lock.release()

    def renew(self) -> None:
        """Prolong the lease if it is time.

        Raises
        ------
        PlanError
            If another driver has taken it.
        """
        if is_url(self.folder) and time.monotonic() - self._renewed_s > LEASE_S / 4:
            holder = self._holder()
            if holder and holder["token"] != self._token:
                raise PlanError(f"{self.folder}: another 'harken batch', {holder['token']}, has taken it over")
            self._write_lease()

    def _take_lease(self) -> None:
        holder = self._holder()
        if holder and time.time() - holder["time"] < LEASE_S and not _is_dead(holder["token"]):
            raise PlanError(
                f"{self.folder}: another 'harken batch', {holder['token']}, writes to it; its lease ends "
                f"{LEASE_S:.0f} s after it does"
            )
        self._write_lease()

    def _write_lease(self) -> None:
        self.publish(LEASE_FILE, [json.dumps({"token": self._token, "time": time.time()})])
        self._renewed_s = time.monotonic()

    def _holder(self) -> dict[str, Any] | None:
        content = self.read(LEASE_FILE)
        try:
            return dict(json.loads(content)) if content else None
        except ValueError:
            return None


def _is_dead(token: str) -> bool:
    """Return whether the process of a lease is one of this machine that has ended."""
    host, process, _ = token.split(":")
    if host != socket.gethostname() or os.name != "posix":
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False

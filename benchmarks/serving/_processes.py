"""The servers that are measured, each a process of its own that says where it listens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from arguments import COMMAND, stop

ADDRESS = re.compile(r"http://([\d.]+):(\d+)")
HARKEN, PEER = "harken", "faster-whisper"
SERVERS = (HARKEN, PEER)
PEER_PROGRAM = Path(__file__).with_name("_peer.py")
END_S = 60


@dataclass(frozen=True)
class Server:
    """A server that runs.

    Parameters
    ----------
    url : str
    process : Popen
    """

    url: str
    process: subprocess.Popen[str]

    @property
    def socket_url(self) -> str:
        """Address for WebSockets."""
        return self.url.replace("http", "ws", 1)

    def resident_mb(self) -> float:
        """Return the memory that is resident, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6


@contextmanager
def running(name: str, model: str, threads: int, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a server while the block runs.

    Parameters
    ----------
    name : str
        One of `SERVERS`.
    model : str
    threads : int
    options : sequence of str
        Further ones of ``harken serve``.
    """
    common = ["--port", "0", "--threads", str(threads), "--model", model]
    command = (
        [*COMMAND, "serve", *common, *options]
        if name == HARKEN
        else [sys.executable, str(PEER_PROGRAM), *common]
    )
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stderr
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := ADDRESS.search(line):
                break
        else:
            stop(f"{name} did not start: {''.join(lines[-3:])}")
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield Server(f"http://{found[1]}:{found[2]}", process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(END_S)
    drain.wait(END_S)

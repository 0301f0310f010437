"""A machine whose name server never answers, in a network of its own: harken asks for no name and loses no time.

The network has only the loopback device. The name server that ``/etc/resolv.conf`` names there takes questions, counts
them, and keeps silent, so each look-up would wait for an answer. Nothing can leave the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runner import Outcome
from processes import HARKEN, environment
from real_models import CACHE, EXAMPLE, model_path

NETWORK = 'mount --bind "$1" /etc/resolv.conf && ip link set lo up && shift && exec "$@"'
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", NETWORK, "sh")
SILENT_SERVER = """
import socket, subprocess, sys, threading
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
questions = []
threading.Thread(target=lambda: [questions.append(server.recv(512)) for _ in iter(int, 1)], daemon=True).start()
code = subprocess.call(sys.argv[1:])
print(*questions)
sys.exit(code)
"""
LOOK_UP = "import socket; socket.getaddrinfo('harken.invalid.example', 80)"
COMMANDS = [
    (("transcribe", str(EXAMPLE)), 0),
    pytest.param(("doctor",), 0, marks=pytest.mark.attack),
    pytest.param(("listen", str(EXAMPLE), "-q"), 0, marks=pytest.mark.attack),
    pytest.param(("transcribe", str(EXAMPLE), "-m", "large-v3", "--no-download"), 4, marks=pytest.mark.attack),
]
OPT_OUTS = ("CI", "HF_HUB_OFFLINE", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY")


def run_before_silence(folder: Path, program: list[str], given: dict[str, str]) -> Outcome:
    """Run a program in the network of the silent server; the last line of its output has the questions."""
    resolver = folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    command = [*UNSHARE, str(resolver), sys.executable, "-c", SILENT_SERVER, *program]
    done = subprocess.run(
        command, env=given, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180
    )
    return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("silent")
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("a network of its own takes Linux, unshare and ip")
    asked = run_before_silence(folder, [sys.executable, "-c", LOOK_UP], dict(os.environ))
    if "gaierror" not in asked.err or "harken" not in asked.out:
        pytest.skip(f"a network of its own cannot be made here: {asked.err.strip()[-100:]}")
    model_path("tiny.en")
    return folder


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("command", "code"), COMMANDS)
def test_no_name_is_looked_up_and_no_identifier_is_written(
    folder: Path, tmp_path: Path, command: tuple[str, ...], code: int
) -> None:
    """As somebody with a new home, who has opted out of nothing."""
    given = environment(CACHE, HOME=str(tmp_path))
    kept = {
        name: value for name, value in given.items() if name not in OPT_OUTS and not name.startswith("XDG_")
    }
    done = run_before_silence(folder, [*HARKEN, *command], kept)
    assert (done.code, done.out.splitlines()[-1]) == (code, ""), done.err
    assert "Traceback" not in done.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]

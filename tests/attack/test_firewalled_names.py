"""A machine whose name server never answers, in a network of its own: harken asks for no name and loses no time.

The network has only the loopback device. The name server that ``/etc/resolv.conf`` names there takes questions, counts
them, and keeps silent, so each look-up would wait for an answer. Nothing can leave the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import HARKEN, environment, run

from real_models import CACHE, EXAMPLE, model_path

NETWORK = 'mount --bind "$1" /etc/resolv.conf && ip link set lo up && shift && exec "$@"'
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", NETWORK, "sh")
SILENT_SERVER = """
import socket, subprocess, sys, threading
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
questions = []
threading.Thread(target=lambda: [questions.append(server.recv(512)) for _ in iter(int, 1)], daemon=True).start()
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write("\\n".join(repr(question) for question in questions))
sys.exit(code)
"""
LOOK_UP = "import socket; socket.getaddrinfo('harken.invalid.example', 80)"
COMMANDS = {
    "transcribe": ("transcribe", str(EXAMPLE)),
    "doctor": ("doctor",),
    "listen": ("listen", str(EXAMPLE), "-q"),
    "models": ("models",),
    "missing model": ("transcribe", str(EXAMPLE), "-m", "large-v3", "--no-download"),
}
QUICK = ("transcribe", "doctor")
CODES = {"missing model": 4}
OPT_OUTS = ("CI", "HF_HUB_OFFLINE", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY")


@dataclass(frozen=True, kw_only=True)
class Silence:
    """The end of a program before the silent server, with its questions."""

    code: int
    err: str
    questions: str


def run_before_silence(folder: Path, program: list[str], given: dict[str, str]) -> Silence:
    """Run a program in the network of the silent server."""
    resolver, log = folder / "resolv.conf", folder / "questions"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:2 attempts:1\n")
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [*UNSHARE, str(resolver), sys.executable, "-c", SILENT_SERVER, str(log), *program],
        env=given,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
    )
    err = done.stderr.decode(errors="replace")
    return Silence(code=done.returncode, err=err, questions=log.read_text() if log.exists() else "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("silent")
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("a network of its own takes Linux, unshare and ip")
    asked = run_before_silence(folder, [sys.executable, "-c", LOOK_UP], dict(os.environ))
    if b"gaierror" not in asked.err.encode() or "harken" not in asked.questions:
        pytest.skip(f"a network of its own cannot be made here: {asked.err.strip()[-100:]}")
    model_path("tiny.en")
    run(["transcribe", EXAMPLE], folder, CACHE)
    return folder


@pytest.fixture
def person(tmp_path: Path) -> dict[str, str]:
    """The environment of a person: no CI, a new home, and nothing that opts out of anything."""
    home = tmp_path / "home"
    home.mkdir()
    given = environment(CACHE, HOME=str(home))
    return {
        name: value for name, value in given.items() if name not in OPT_OUTS and not name.startswith("XDG_")
    }


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.attack]) for name in COMMANDS]
)
def test_no_name_is_looked_up_and_no_identifier_is_written(
    folder: Path, person: dict[str, str], command: str
) -> None:
    done = run_before_silence(folder, [*HARKEN, *COMMANDS[command]], person)
    assert not done.questions
    assert done.code == CODES.get(command, 0), done.err
    assert "Traceback" not in done.err
    assert not [path for path in Path(person["HOME"]).rglob("*") if path.is_file()]

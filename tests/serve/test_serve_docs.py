"""The commands and the Python of docs/serve.md, against a server."""

import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from harken.audio import load_audio
from harken.checkpoints.hub import embedded_model
from real_models import EXAMPLE, words

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8765"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# What is left out test_rest_speakers.py does, without models.
PYTHON = [code for code in BLOCKS if "known_speaker" not in code]
CURL = [line for line in PAGE.splitlines() if line.startswith("curl ")]

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(embedded_model() is None, reason="no package that carries tiny.en is installed"),
]


@pytest.fixture
def in_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["program", "examples/jfk.flac"])


@pytest.mark.usefixtures("in_root")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", CURL)
def test_curl(unhurried_server, line):
    command = shlex.split(line.replace(ADDRESS, f"127.0.0.1:{unhurried_server.port}"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "country" in done.stdout
    assert "error" not in done.stdout


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("code", PYTHON)
def test_python(unhurried_server, code, capsys):
    samples = np.concatenate([load_audio(EXAMPLE), np.zeros(80_000, np.float32)])
    at_24_khz = np.interp(np.arange(len(samples) * 3 // 2) / 1.5, np.arange(len(samples)), samples)
    names = {"pcm16_at_24_khz": (at_24_khz * 32767).astype("<i2").tobytes()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of OpenAI's library
        program = code.replace(ADDRESS, f"127.0.0.1:{unhurried_server.port}")
        exec(compile(program, "docs/serve.md", "exec"), names)
    assert {"fellow", "americans"} <= {*words(capsys.readouterr().out)}


def test_there_are_examples():
    assert len(CURL) >= 3
    assert len(PYTHON) >= 2

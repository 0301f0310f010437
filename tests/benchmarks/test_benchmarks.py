"""The programs in benchmarks/ run: each for a moment on real speech, with the engines that are installed."""

import importlib.util
import shlex
import subprocess
import sys

import pytest

from real_models import SHARED, model_path
from results import ROOT

FOLDER = ROOT / "benchmarks"
PARTS = {
    "conversations", "engines", "live_clients", "program", "random_weights", "recordings", "results", "tables",
    "voices",
}  # fmt: skip
"""Modules, and programs that are tested otherwise."""
LIMITED = "--limit 1 --set arctic"
RUNS = {
    "compare": f"{LIMITED} --repeats 1",
    "errors": f"{LIMITED} --engines harken --model tiny.en",
    "fleet": f"{LIMITED} --repeats 1 --ways in-process",
    "expected": "--dims tiny --bursts 1 --burst-s 0.01 --positions 300",
    "gpu": "--dims tiny --device cpu --steps 2 --rounds 1 --batch 1",
    "hashing": "--positions 300 --repeats 1",
    "live": LIMITED,
    "memory": "--limit 1 --hours 0.002",
    "parity": f"{LIMITED} --beam 1",
    "serving": "--count 5 --protocol own realtime deepgram vosk wyoming --seconds 2 --delay low",
    "speculative": f"{LIMITED} --repeats 1 --model tiny.en --source ngram transcript",
    "subtitles": "--limit 1 --style plain",
    "word_times": f"{LIMITED} --engines harken 'harken live' 'harken align'",
    "steps": "--bursts 1 --burst-s 0.01 --tokens 1 2 --rows 1 2 --positions 300 --precision int16",
    "diarization": "--folder {conversations} --engine harken --speaker-model {speakers}",
}
NEEDS = {
    "parity": ("whisper", "torch"),
    "gpu": ("torch",),
    "hashing": ("torch",),
    "word_times": ("espeakng_loader",),
    "diarization": ("onnxruntime",),
}
BY_DAY = {"errors", "steps"}
"""Runs of a second or two, of speech, by most of what the programs share; the others take longer, and run at night."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not (SHARED / "audio").is_dir(), reason="needs the recordings of ../shared/audio"),
]


def test_every_program_is_run_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == RUNS.keys() | PARTS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in RUNS]
)
def test_a_program_yields_rows(name, tmp_path, places):
    for module in NEEDS.get(name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    arguments = [places(part) for part in shlex.split(RUNS[name])]
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--audio", str(SHARED / "audio")]
    done = subprocess.run(
        [*command, "--threads", "1", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return a function that puts paths into arguments; conversations are made when they are first needed."""

    def fill(part):
        if part == "{conversations}":
            return str(conversations(tmp_path_factory.getbasetemp() / "conversations"))
        return str(model_path("speakers")) if part == "{speakers}" else part

    return fill


def conversations(folder):
    """Return a folder with a conversation in each half."""
    if not folder.exists():
        options = ["--to", str(folder), "--kind", "clean-2", "--count", "1", "--audio", str(SHARED / "audio")]
        subprocess.run([sys.executable, str(FOLDER / "conversations.py"), *options], check=True)
    return folder


def test_a_program_without_its_packages_ends_with_one_line():
    blocked = "import sys, runpy; sys.modules['harken'] = None; sys.path.insert(0, {0!r}); sys.argv = ['x.py']"
    code = f"{blocked}; runpy.run_path({{0!r}} + '/errors.py', run_name='__main__')".format(str(FOLDER))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "errors.py: cannot import harken: pip install -e '.[bench]'\n"

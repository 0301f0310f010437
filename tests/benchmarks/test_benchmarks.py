"""The programs in benchmarks/ describe themselves without the extras, and write results that can be read."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from results import ROOT, begin

FOLDER = ROOT / "benchmarks"
FOLDERS = ("decisions", "fleet", "streaming")
MODULES_WITHOUT_PROGRAM = (
    "arguments", "engines", "layouts", "local_agreement", "process_memory", "random_checkpoint", "recordings",
    "results", "roofline",
)  # fmt: skip
PROGRAMS = [
    *([path.name] for path in sorted(FOLDER.glob("*.py")) if path.stem not in MODULES_WITHOUT_PROGRAM),
    *([folder, path.stem] for folder in FOLDERS for path in sorted((FOLDER / folder).glob("[a-z]*.py"))),
]
WITHOUT_EXTRAS = """
import runpy, sys
for name in ("numpy", "harken", "torch", "openvino", "onnxruntime", "faster_whisper", "whisper", "jiwer"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
sys.argv = [f"{sys.argv[1]}/{sys.argv[2]}", *sys.argv[3:], "--help"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def help_texts() -> dict[str, subprocess.CompletedProcess[str]]:
    """Help of every program, run side by side."""

    def run(program: list[str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_EXTRAS, str(FOLDER), *program]
        return subprocess.run(command, capture_output=True, text=True)

    with ThreadPoolExecutor(4) as pool:
        return {
            " ".join(program): done for program, done in zip(PROGRAMS, pool.map(run, PROGRAMS), strict=True)
        }


@pytest.mark.parametrize("program", [" ".join(program) for program in PROGRAMS])
def test_help_runs_without_packages(
    program: str, help_texts: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    done = help_texts[program]
    assert done.returncode == 0, done.stderr
    assert f"usage: {program}" in done.stdout
    assert done.stdout.count(f"python benchmarks/{program}") >= 1, "the docstring shows how to run it"


def test_folder_without_program_lists_its_programs() -> None:
    done = subprocess.run([sys.executable, str(FOLDER / "streaming")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "usage: python benchmarks/streaming {hours,latency,many,sweep,worst}" in done.stderr


def test_program_of_a_folder_is_named_in_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"{FOLDER / 'streaming'} worst", "--case", "silence"])
    assert begin("live-worst", {}).command == "python benchmarks/streaming worst --case silence"

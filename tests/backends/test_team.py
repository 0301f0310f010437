"""The team of threads: a C program makes random calls and checks every item of them."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

KERNEL = Path(__file__).parents[2] / "src/harken/backends/native/kernel"
SOURCES = [Path(__file__).parent / "team_stress.c", KERNEL / "team.c", KERNEL / "os_threads.c"]

pytestmark = pytest.mark.skipif(find_spec("ziglang") is None, reason="needs a C compiler: pip install ziglang")


@pytest.fixture(scope="module")
def stress_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("team") / "team_stress.exe"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-O2", "-std=c11", "-Wall", "-Wextra", "-Werror"]
    command = [*compiler, f"-I{KERNEL}", *map(str, SOURCES), "-o", str(program), "-lpthread"]
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert compiled.returncode == 0, compiled.stderr
    return program


@pytest.mark.parametrize("busy_processes", [0, 2])
def test_every_item_is_done_once_and_phase_after_phase(stress_program: Path, busy_processes: int) -> None:
    command = [str(stress_program), "150", "1", str(busy_processes)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (finished.returncode, finished.stdout) == (0, "passed\n")

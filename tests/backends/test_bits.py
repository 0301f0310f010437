"""C programs over the kernels: the same bits everywhere, also from ARM64 by emulation, and the team of threads.

By day, tests/contract compares the bits of tiny models in `test_exact_bits.py` and `test_native_encoder.py`.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNEL = HERE.parents[1] / "src" / "harken" / "backends" / "native" / "kernel"
# For the oldest processor of the kind, as in a wheel: else what is portable uses what this processor has, too.
FLAGS = ("-O2", "-std=c11", "-ffp-contract=off", "-mcpu=baseline", f"-I{KERNEL}")
MODELS = (
    *("4-bit-decoder", "7-bit-decoder", "8-bit-encoder", "encoder", "longest-window", "longest-8-bit-window"),
    *("float-decoder", "float-encoder", "log-mel", "silero"),
)

pytestmark = pytest.mark.skipif(find_spec("ziglang") is None, reason="needs a C compiler: pip install ziglang")


def build(folder, name, sources, *options):
    """Compile a program of this folder together with sources of the kernel."""
    program = folder / f"{name}.exe"
    compiler = [sys.executable, "-m", "ziglang", "cc", *FLAGS]
    command = [*compiler, *options, HERE / f"{name}.c", *sources, "-o", program]
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert compiled.returncode == 0, compiled.stderr
    return program


def hashes(folder, *options, emulator=()):
    """Build the program and run it; return the hashes that it prints for each model."""
    program = build(folder, "bits", KERNEL.glob("*.c"), *options)
    done = subprocess.run([*emulator, program], capture_output=True, text=True, timeout=300, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == {*MODELS}
    return {model: {line[1] for line in lines if line[0] == model} for model in MODELS}


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return hashes(tmp_path_factory.mktemp("native"))


@pytest.mark.nightly
def test_bits_do_not_depend_on_instruction_set_or_threads(native):
    assert {model: len(hashes) for model, hashes in native.items()} == dict.fromkeys(MODELS, 1)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="qemu-aarch64, the emulator, is not installed")
@pytest.mark.parametrize("processor", ["max", "cortex-a72"])
def test_arm64_gives_the_same_bits(native, tmp_path, processor):
    emulator = "qemu-aarch64", "-cpu", processor
    assert hashes(tmp_path, "-target", "aarch64-linux-musl", "-static", emulator=emulator) == native


@pytest.fixture(scope="module")
def team_stress(tmp_path_factory):
    warnings = "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"  # the program needs few of os_threads.h
    return build(tmp_path_factory.mktemp("team"), "team_stress", [KERNEL / "team.c"], *warnings, "-lpthread")


@pytest.mark.parametrize("busy_processes", [0, 2])
def test_every_item_is_done_once_and_phase_after_phase(team_stress, busy_processes):
    command = [str(team_stress), "150", "1", str(busy_processes)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (finished.returncode, finished.stdout) == (0, "passed\n")

"""The same bits from every instruction set, number of threads and, by emulation, from ARM64.

By day, tests/contract compares the bits of tiny models in `test_exact_bits.py` and `test_native_encoder.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ROOT / "src" / "harken" / "backends" / "native" / "kernel"
# For the oldest processor of the kind, as in a wheel: else what is portable uses what this processor has, too.
FLAGS = ("-O2", "-std=c11", "-ffp-contract=off", "-mcpu=baseline", f"-I{KERNEL}")
MODELS = (
    *("4-bit-decoder", "8-bit-decoder", "8-bit-encoder", "encoder", "longest-window"),
    *("float-decoder", "float-encoder", "log-mel", "silero"),
)

needs_compiler = pytest.mark.skipif(
    find_spec("ziglang") is None, reason="ziglang, the compiler, is not installed"
)


def hashes(program: Path, *emulator: str) -> dict[str, set[str]]:
    """Run the program; return the hashes that it prints for each model."""
    done = subprocess.run([*emulator, program], capture_output=True, text=True, timeout=300, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == {*MODELS}
    return {model: {line[1] for line in lines if line[0] == model} for model in MODELS}


def build(folder: Path, *options: str) -> Path:
    program = folder / "bits"
    sources = [ROOT / "tests" / "backends" / "bits.c", *KERNEL.glob("*.c")]
    command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, *options, *sources, "-o", program]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    return program


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return hashes(build(tmp_path_factory.mktemp("native")))


@pytest.mark.nightly
@needs_compiler
def test_bits_do_not_depend_on_instruction_set_or_threads(native: dict[str, set[str]]) -> None:
    assert {model: len(hashes) for model, hashes in native.items()} == dict.fromkeys(MODELS, 1)


@pytest.mark.nightly
@needs_compiler
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="qemu-aarch64, the emulator, is not installed")
@pytest.mark.parametrize("processor", ["max", "cortex-a72"])
def test_arm64_gives_the_same_bits(native: dict[str, set[str]], tmp_path: Path, processor: str) -> None:
    program = build(tmp_path, "-target", "aarch64-linux-musl", "-static")
    assert hashes(program, "qemu-aarch64", "-cpu", processor) == native

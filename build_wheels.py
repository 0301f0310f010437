"""Build wheels for Linux, macOS and Windows on any of them: ``python build_wheels.py --out dist``.

It needs ``pip install hatchling ziglang==0.17.1``, and checks the library in each wheel.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from hatch_build import PACKAGE, TARGETS

ROOT = Path(__file__).resolve().parent
PROCESSORS = {
    "elf": {62: "x86_64", 183: "aarch64"},
    "mach-o": {0x01000007: "x86_64", 0x0100000C: "aarch64"},
    "pe": {0x8664: "x86_64", 0xAA64: "aarch64"},
}
FORMATS = {"linux": "elf", "macos": "mach-o", "windows": "pe"}


def main() -> None:
    """Build the wheels that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS), help="default: all")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheels (default: dist)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        for name in options.target:
            started = time.monotonic()
            wheel = build_wheel(name, options.out.absolute(), cache)
            check_wheel(wheel, name)
            seconds = time.monotonic() - started
            print(f"{name}: {wheel.stat().st_size / 1e6:.1f} MB, {seconds:.0f} s", flush=True)


def build_wheel(name: str, out: Path, cache: str) -> Path:
    """Build the wheel of a target into a folder; `cache` keeps what the compiler makes for several targets."""
    settings = {"HARKEN_NATIVE_TARGET": name, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    if subprocess.run(command, cwd=ROOT, env=os.environ | settings).returncode:
        raise SystemExit(f"{name}: no wheel")
    (wheel,) = out.glob(f"harken-*-{TARGETS[name].wheel}.whl")
    return wheel


def check_wheel(wheel: Path, name: str) -> None:
    """Raise unless the wheel holds the target's library, for the target's processor, and no C."""
    library = (PACKAGE / TARGETS[name].library).as_posix()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if library not in names or any(entry.endswith((".c", ".h")) for entry in names):
            raise SystemExit(f"{wheel}: must hold {library}, and no C sources")
        found = read_format(archive.read(library))
    if found != expected_format(name):
        raise SystemExit(f"{wheel}: {library} is {found}, but must be {expected_format(name)}")


def expected_format(name: str) -> tuple[str, str]:
    """Return the format and the processor of a target's library."""
    processor, system, *_ = TARGETS[name].triple.replace(".", "-").split("-")
    return FORMATS[system], processor


def read_format(library: bytes) -> tuple[str, str]:
    """Return the format of a library and its processor, from its first bytes."""
    if library[:4] == b"\x7fELF":
        name, number = "elf", struct.unpack_from("<H", library, 18)[0]
    elif library[:4] == b"\xcf\xfa\xed\xfe":
        name, number = "mach-o", struct.unpack_from("<I", library, 4)[0]
    elif library[:2] == b"MZ":
        header = struct.unpack_from("<I", library, 0x3C)[0]
        name, number = "pe", struct.unpack_from("<H", library, header + 4)[0]
    else:
        return "unknown", "unknown"
    return name, PROCESSORS[name].get(number, f"processor {number}")


if __name__ == "__main__":
    main()

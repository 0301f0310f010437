"""Compile the decoder while a wheel is built, with the C compiler of the package ``ziglang``.

hatchling runs this at ``pip install .``; ``python hatch_build.py`` compiles the library beside the modules, for those who
change the C sources. Two environment variables are read:

* ``HARKEN_NO_NATIVE=1`` compiles nothing. The wheel is for every platform, and ONNX Runtime decodes.
* ``HARKEN_NATIVE_TARGET=NAME`` compiles for another platform, a name of `TARGETS`; ``build_wheels.py`` sets it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

ZIGLANG = "ziglang==0.17.1"
PACKAGE = Path("harken/backends/native")
SOURCES = Path(__file__).resolve().parent / "src" / PACKAGE
NOT_BUILT = "_not_built.txt"  # one line: why there is no library

# One command compiles all files. Floating-point operations are never fused on the compiler's own account, so that every
# processor computes the same bits. Building Zig's runtime library would take longer than everything else: the sources do
# without it, and the linker refuses those that do not.
COMPILE = (
    *("-O3", "-std=c11", "-ffp-contract=off", "-fno-sanitize=all", "-fvisibility=hidden", "-Wall", "-Wextra"),
    *("-shared", "-s", "-rtlib=none"),
)
ELF = ("-Wl,-z,defs", "-lpthread", "-lm")
# MinGW's startup code would be compiled first, which takes a minute. A library of plain functions has no use for it.
PE = ("-nostdlib", "-Wl,--no-entry", "-lkernel32", "-lucrtbase", "-lapi-ms-win-core-synch-l1-2-0")


class Target(NamedTuple):
    """A platform: the compiler's name of it, the library's file name, and flags of the linker."""

    triple: str
    library: str
    flags: tuple[str, ...] = ()


# By the platform of the wheel.
TARGETS = {
    "manylinux_2_17_x86_64.manylinux2014_x86_64": Target("x86_64-linux-gnu.2.17", "_harken.so", ELF),
    "manylinux_2_17_aarch64.manylinux2014_aarch64": Target("aarch64-linux-gnu.2.17", "_harken.so", ELF),
    "musllinux_1_1_x86_64": Target("x86_64-linux-musl", "_harken.so", ELF),
    "musllinux_1_1_aarch64": Target("aarch64-linux-musl", "_harken.so", ELF),
    "macosx_11_0_x86_64": Target("x86_64-macos.11.0", "_harken.dylib"),
    "macosx_11_0_arm64": Target("aarch64-macos.11.0", "_harken.dylib"),
    "win_amd64": Target("x86_64-windows-gnu", "_harken.dll", PE),
    "win_arm64": Target("aarch64-windows-gnu", "_harken.dll", PE),
}


class NotBuilt(Exception):
    """There is no library for this wheel; the message says why in one line."""


def choose_platform() -> str:
    """Return the platform that the wheel is for, a key of `TARGETS`.

    Raises
    ------
    NotBuilt
        If nothing is to be compiled, or there is no target for this interpreter.
    """
    if os.environ.get("HARKEN_NO_NATIVE", "0") not in ("", "0"):
        raise NotBuilt("HARKEN_NO_NATIVE was set at installation")
    chosen = os.environ.get("HARKEN_NATIVE_TARGET")
    if chosen:
        if chosen not in TARGETS:
            raise SystemExit(f"HARKEN_NATIVE_TARGET is {chosen!r}, but must be one of {', '.join(TARGETS)}")
        return chosen
    accepted = {tag.platform for tag in sys_tags()}
    for platform in TARGETS:
        if accepted.intersection(platform.split(".")):
            return platform
    raise NotBuilt(f"there is no target for {next(sys_tags()).platform}")


def compile_library(platform: str, folder: Path) -> Path:
    """Compile the C sources for a platform into a folder, and return the library's path.

    Raises
    ------
    NotBuilt
        If the compiler is missing or refuses the sources.
    """
    target = TARGETS[platform]
    sources = sorted(str(path) for path in (SOURCES / "kernel").glob("*.c"))
    ziglang = find_spec("ziglang")
    if ziglang is None or ziglang.origin is None:
        raise NotBuilt(f"the compiler, {ZIGLANG}, is not installed")
    if not sources:
        raise NotBuilt(f"no C sources in {SOURCES / 'kernel'}")
    library = folder / target.library
    flags = list(target.flags)
    if "-nostdlib" in flags:  # which takes the headers away as well
        flags.append(f"-isystem{Path(ziglang.origin).parent / 'lib/libc/include/any-windows-any'}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        # The home folder may be missing or read-only; both caches are kept only if the caller has one for several targets.
        caches = {
            name: os.environ.get(name, scratch) for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
        }
        output = Path(scratch) / target.library
        command = [
            "-m",
            "ziglang",
            "cc",
            *COMPILE,
            "-target",
            target.triple,
            *sources,
            "-o",
            str(output),
            *flags,
        ]
        done = subprocess.run(
            [sys.executable, *command],
            env=os.environ | caches,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        print(done.stdout, end="", file=sys.stderr)
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if "error" in line]
            raise NotBuilt(
                f"the compiler failed: {' '.join((errors or [f'code {done.returncode}'])[0].split())}"
            )
        library.write_bytes(output.read_bytes())
    return library


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the library into the wheel, or leaves a wheel of Python alone, with a warning."""

    def dependencies(self) -> list[str]:
        """Return the compiler, where there is something to compile."""
        try:
            choose_platform()
        except NotBuilt:
            return []
        return [ZIGLANG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library; an editable installation finds it beside the modules."""
        self.scratch = tempfile.TemporaryDirectory()
        folder = SOURCES if version == "editable" else Path(self.scratch.name)
        for name in (NOT_BUILT, *(target.library for target in TARGETS.values())):
            (folder / name).unlink(missing_ok=True)
        try:
            platform = choose_platform()
            built = compile_library(platform, folder)
        except NotBuilt as reason:
            if os.environ.get("HARKEN_NATIVE_TARGET"):
                raise SystemExit(f"no wheel for {platform}: {reason}") from None
            self.app.display_warning(
                f"The compiled decoder was not built: {reason}. ONNX Runtime decodes instead."
            )
            built = folder / NOT_BUILT
            built.write_text(f"{reason}\n", encoding="utf-8")
        else:
            build_data["tag"] = f"py3-none-{platform}"
            build_data["pure_python"] = False
        if version != "editable":
            build_data["force_include"][str(built)] = str(PACKAGE / built.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the library that the wheel now holds."""
        self.scratch.cleanup()


if __name__ == "__main__":
    try:
        print(compile_library(choose_platform(), SOURCES))
    except NotBuilt as error:
        sys.exit(f"not built: {error}")

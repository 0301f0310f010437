"""Compile the engine while a wheel is built, with the C compiler of the package ``ziglang``.

hatchling runs this at ``pip install .``; ``python hatch_build.py`` compiles the library beside the modules, for
those who change the C sources. Two environment variables are read:

* ``HARKEN_NO_NATIVE=1`` compiles nothing. The wheel is for every platform, and needs the extra ``onnx``.
* ``HARKEN_NATIVE_TARGET=NAME`` compiles for another platform, a name of `TARGETS`; ``build_wheels.py`` sets it.
"""

from __future__ import annotations

import os
import shutil
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
MODULES = Path(__file__).resolve().parent / "src" / PACKAGE
NOT_BUILT = "_not_built.txt"  # one line: why there is no library

# One command compiles all files. Floating-point operations are never fused on the compiler's own account, so every
# processor computes the same bits.
COMPILE = (
    *("-O3", "-std=c11", "-ffp-contract=off", "-fno-sanitize=all", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wpointer-arith", "-shared", "-s"),
)
# Zig's runtime library takes longer to build than all the sources; they do without it, or the linker refuses them.
# Windows needs one of its functions for stack frames of more than a page, but no startup code: MinGW's takes a minute.
ELF = ("-rtlib=none", "-Wl,-z,defs", "-lpthread", "-lm")
MACH_O = ("-rtlib=none", "-Wl,-install_name,@rpath/_harken.dylib")
PE = (
    *("-nostdlib", "-rtlib=compiler-rt", "-Wl,--no-entry"),
    *("-lkernel32", "-lucrtbase", "-lapi-ms-win-core-synch-l1-2-0"),
)
MINGW_HEADERS = "lib/libc/include/any-windows-any"  # in ziglang; -nostdlib takes them away


class Target(NamedTuple):
    """A platform: the compiler's name of it, the tag of its wheels, its library, and flags of the linker."""

    triple: str
    wheel: str
    library: str
    flags: tuple[str, ...]


TARGETS = {
    "linux-x86_64": Target(
        "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64.manylinux2014_x86_64", "_harken.so", ELF
    ),
    "linux-aarch64": Target(
        "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64.manylinux2014_aarch64", "_harken.so", ELF
    ),
    "linux-musl-x86_64": Target("x86_64-linux-musl", "musllinux_1_2_x86_64", "_harken.so", ELF),
    "linux-musl-aarch64": Target("aarch64-linux-musl", "musllinux_1_2_aarch64", "_harken.so", ELF),
    "macos-x86_64": Target("x86_64-macos.11.0", "macosx_11_0_x86_64", "_harken.dylib", MACH_O),
    "macos-arm64": Target("aarch64-macos.11.0", "macosx_11_0_arm64", "_harken.dylib", MACH_O),
    "windows-amd64": Target("x86_64-windows-gnu", "win_amd64", "_harken.dll", PE),
    "windows-arm64": Target("aarch64-windows-gnu", "win_arm64", "_harken.dll", PE),
}


class NotBuilt(Exception):
    """There is no library; the message says why in one line."""


def choose_target() -> str:
    """Return the name of the target: the one that was asked for, or that of this interpreter.

    Raises
    ------
    NotBuilt
        If nothing is to be compiled, or there is no such target.
    """
    if os.environ.get("HARKEN_NO_NATIVE", "0") not in ("", "0"):
        raise NotBuilt("HARKEN_NO_NATIVE was set at installation")
    name = os.environ.get("HARKEN_NATIVE_TARGET")
    if name:
        if name not in TARGETS:
            raise NotBuilt(f"HARKEN_NATIVE_TARGET is {name!r}, but must be one of {', '.join(TARGETS)}")
        return name
    installable = {tag.platform for tag in sys_tags()}
    for name, target in TARGETS.items():
        if not installable.isdisjoint(target.wheel.split(".")):
            return name
    raise NotBuilt(f"there is no target for {next(sys_tags()).platform}")


def compile_library(name: str, folder: Path) -> Path:
    """Compile the C sources for a target into a folder, and return the library's path.

    Raises
    ------
    NotBuilt
        If the compiler is missing or fails.
    """
    target = TARGETS[name]
    ziglang = find_spec("ziglang")
    if ziglang is None or ziglang.origin is None:
        raise NotBuilt(f"the compiler, {ZIGLANG}, is not installed")
    sources = sorted(str(path) for path in (MODULES / "kernel").glob("*.c"))
    if not sources:
        raise NotBuilt(f"there are no C sources in {MODULES / 'kernel'}")
    headers = ["-isystem", str(Path(ziglang.origin).parent / MINGW_HEADERS)] if target.flags is PE else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        # The home folder may be missing or read-only; only a caller with several targets keeps the caches.
        caches = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        output = Path(scratch) / target.library
        arguments = [*COMPILE, "-target", target.triple, *headers, *sources, "-o", str(output), *target.flags]
        done = subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", *arguments],
            env=caches | os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        print(done.stdout, end="", file=sys.stderr)
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if "error" in line.lower()]
            reason = errors[0] if errors else f"code {done.returncode}"
            raise NotBuilt(f"the compiler failed: {' '.join(reason.split())}")
        library = folder / target.library
        partial = library.with_suffix(".part")  # a process may have the old library mapped, or load it now
        partial.write_bytes(output.read_bytes())
        partial.replace(library)
    return library


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the library into the wheel, or leaves a wheel of Python alone, with a warning."""

    def dependencies(self) -> list[str]:
        """Return the compiler, where there is something to compile."""
        try:
            choose_target()
        except NotBuilt:
            return []
        return [ZIGLANG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library; an editable installation has it beside the modules."""
        editable = version == "editable"
        self.scratch = tempfile.mkdtemp()
        folder = MODULES if editable else Path(self.scratch)
        (folder / NOT_BUILT).unlink(missing_ok=True)
        try:
            name = choose_target()
            built = compile_library(name, folder)
        except NotBuilt as reason:
            if os.environ.get("HARKEN_NATIVE_TARGET"):
                shutil.rmtree(self.scratch)
                raise
            self.app.display_warning(
                f"The compiled engine was not built: {reason}. The extra 'onnx' has an engine that does without it."
            )
            for target in TARGETS.values():
                (folder / target.library).unlink(missing_ok=True)
            built = folder / NOT_BUILT
            built.write_text(f"{reason}\n", encoding="utf-8")
        else:
            build_data["tag"] = f"py3-none-{TARGETS[name].wheel}"
            build_data["pure_python"] = False
        if not editable:
            build_data["force_include"][str(built)] = str(PACKAGE / built.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the library that the wheel holds now."""
        shutil.rmtree(self.scratch, ignore_errors=True)


if __name__ == "__main__":
    try:
        print(compile_library(choose_target(), MODULES))
    except NotBuilt as error:
        sys.exit(f"not built: {error}")

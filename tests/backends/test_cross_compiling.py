"""The library links for every platform, whatever the machine."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

import build_wheels
import hatch_build

HEADER = hatch_build.MODULES / "kernel" / "harken.h"
FUNCTIONS = re.findall(r"^HARKEN_API [^(]*?(\w+)\(", HEADER.read_text(encoding="utf-8"), flags=re.MULTILINE)

BY_DAY = {"windows-amd64"}
"""Targets that differ from each other and from the machine in system or processor."""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ziglang") is None, reason="needs the C compiler: pip install -e '.[native]'")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in hatch_build.TARGETS],
)
def test_library_links(name: str, tmp_path: Path) -> None:
    library = hatch_build.compile_library(name, tmp_path).read_bytes()
    assert build_wheels.read_format(library) == build_wheels.expected_format(name)
    assert [function for function in FUNCTIONS if f"{function}\0".encode() not in library] == []
    assert {int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)} <= set(range(18))

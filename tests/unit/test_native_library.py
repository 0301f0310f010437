"""The compiled library: why it cannot be used, in one line, and the choice of its kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harken.backends.native import library
from harken.errors import BackendUnavailable, OptionError


@pytest.fixture(autouse=True)
def _load_anew() -> Iterator[None]:
    library.load_library.cache_clear()
    yield
    library.load_library.cache_clear()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library is expected."""
    path = tmp_path / "_harken.so"
    monkeypatch.setattr(library, "library_path", lambda: path)
    return path


@pytest.mark.parametrize(
    ("platform", "name"), [("linux", "_harken.so"), ("darwin", "_harken.dylib"), ("win32", "_harken.dll")]
)
def test_library_lies_beside_its_module(monkeypatch: pytest.MonkeyPatch, platform: str, name: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert library.library_path() == Path(library.__file__).parent / name


def test_library_that_was_not_built_is_named(path: Path) -> None:
    assert library.unavailable_reason() == f"the native decoder was not built: there is no {path}"


def test_library_that_cannot_be_loaded_is_reported_in_one_line(path: Path) -> None:
    path.write_bytes(b"not a library")
    reason = library.unavailable_reason()
    assert reason is not None
    assert reason.startswith("the native decoder cannot be loaded: ")
    assert "\n" not in reason
    with pytest.raises(BackendUnavailable, match="cannot be loaded"):
        library.instruction_sets()


def test_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := library.unavailable_reason():
        pytest.skip(reason)
    library.load_library.cache_clear()
    monkeypatch.setattr(library, "ABI_VERSION", library.ABI_VERSION + 1)
    reason = library.unavailable_reason()
    assert reason is not None
    assert "version" in reason


def test_best_instruction_set_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "instruction_sets", lambda: ("fast", "portable"))
    monkeypatch.delenv(library.INSTRUCTION_SET_VARIABLE, raising=False)
    assert library.chosen_instruction_set() == "fast"
    monkeypatch.setenv(library.INSTRUCTION_SET_VARIABLE, "")
    assert library.chosen_instruction_set() == "fast"


def test_environment_chooses_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "instruction_sets", lambda: ("fast", "portable"))
    monkeypatch.setenv(library.INSTRUCTION_SET_VARIABLE, "portable")
    assert library.chosen_instruction_set() == "portable"
    monkeypatch.setenv(library.INSTRUCTION_SET_VARIABLE, "abacus")
    with pytest.raises(OptionError) as caught:
        library.chosen_instruction_set()
    assert str(caught.value) == "HARKEN_INSTRUCTION_SET='abacus': allowed is fast or portable"

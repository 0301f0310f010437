"""The compiled library where it is missing, damaged or of another version, and what takes its place."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harken import compiled_library
from harken.audio import mel
from harken.backends import native
from harken.compiled_library import ABI_VERSION, library_path, load_library
from harken.errors import BackendUnavailable


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "_harken.so"
    monkeypatch.setattr(compiled_library, "library_path", lambda: path)
    monkeypatch.setattr(compiled_library, "load_library", load_library.__wrapped__)
    return path


def test_missing_library_is_named(library: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"was not built: there is no .*_harken\.so"):
        compiled_library.load_library()


def test_reason_that_the_installation_left_is_given(library: Path) -> None:
    library.with_name("_not_built.txt").write_text("there is no compiler\n")
    with pytest.raises(BackendUnavailable, match=r"was not built: there is no compiler$"):
        compiled_library.load_library()


@pytest.mark.parametrize(
    ("platform", "name"), [("linux", "_harken.so"), ("darwin", "_harken.dylib"), ("win32", "_harken.dll")]
)
def test_library_lies_beside_the_modules_of_the_native_backend(
    monkeypatch: pytest.MonkeyPatch, platform: str, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert library_path() == Path(native.__file__).parent / name


def test_damaged_library_is_reported_in_one_line(library: Path) -> None:
    library.write_bytes(b"not a library")
    with pytest.raises(BackendUnavailable, match="cannot be loaded") as raised:
        compiled_library.load_library()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [20, 20_000])
def test_library_that_was_cut_short_is_reported(library: Path, size: int) -> None:
    whole = library_path()
    if not whole.exists() or not whole.read_bytes().startswith(b"\x7fELF"):
        pytest.skip("there is no compiled library in ELF")
    library.write_bytes(whole.read_bytes()[:size])
    with pytest.raises(BackendUnavailable, match="cut short"):
        compiled_library.load_library()


def test_library_of_another_version_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.touch()
    other = SimpleNamespace(harken_abi_version=lambda: ABI_VERSION + 1)
    monkeypatch.setattr(compiled_library, "CDLL", lambda path: other)
    with pytest.raises(
        BackendUnavailable, match=rf"version {ABI_VERSION + 1} of the interface, not {ABI_VERSION}"
    ):
        compiled_library.load_library()


@pytest.mark.parametrize("functions", [None, SimpleNamespace()], ids=["missing", "without log-mel"])
def test_log_mel_falls_back_to_numpy(functions: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> object:
        if functions is None:
            raise BackendUnavailable("not built")
        return functions

    monkeypatch.setattr("harken.audio.mel.load_library", load)
    mel._compiled_frames.cache_clear()
    try:
        assert mel._compiled_frames(80) is None
    finally:
        mel._compiled_frames.cache_clear()

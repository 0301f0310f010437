"""The compiled library: why it cannot be used, in one line, and the choice of its kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harken.backends.native import library
from harken.errors import BackendUnavailable, OptionError


def test_reason_why_the_library_cannot_be_used_is_that_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BackendUnavailable("the compiled library was not built: no disk")

    monkeypatch.setattr(library.compiled_library, "load_library", fail)
    monkeypatch.setattr(library, "load_library", library.load_library.__wrapped__)
    assert library.unavailable_reason() == "the compiled library was not built: no disk"
    with pytest.raises(BackendUnavailable, match="no disk"):
        library.instruction_sets()


def test_library_without_the_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.compiled_library, "load_library", SimpleNamespace)
    monkeypatch.setattr(library, "load_library", library.load_library.__wrapped__)
    assert (library.unavailable_reason() or "").startswith("the compiled library cannot be loaded: ")


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

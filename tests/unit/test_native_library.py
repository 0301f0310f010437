"""The compiled library: why it cannot be used, in one line, and the choice of its kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harken import compiled_library
from harken.backends.native import library
from harken.errors import BackendUnavailable, OptionError


def test_library_that_cannot_be_loaded_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise BackendUnavailable("the compiled library was not built")

    library.load_library.cache_clear()
    monkeypatch.setattr(compiled_library, "load_library", load)
    assert library.unavailable_reason() == "the compiled library was not built"
    with pytest.raises(BackendUnavailable, match="was not built"):
        library.instruction_sets()


def test_library_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library.load_library.cache_clear()
    monkeypatch.setattr(compiled_library, "load_library", SimpleNamespace)
    reason = library.unavailable_reason()
    assert reason is not None
    assert reason.startswith("the compiled library cannot be used: ")
    assert "\n" not in reason


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

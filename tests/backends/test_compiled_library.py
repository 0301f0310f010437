"""The compiled library: why it cannot be used, what takes its place, and the choice of its kernels."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

from harken import compiled_library
from harken.audio import log_mel, mel
from harken.audio.vad import CHUNK_SAMPLES, SpeechDetector
from harken.backends.native import library as native_library
from harken.compiled_library import ABI_VERSION, library_path, load_library
from harken.errors import BackendUnavailable, OptionError


@pytest.fixture(autouse=True)
def library(monkeypatch, tmp_path):
    path = tmp_path / "_harken.so"
    monkeypatch.setattr(compiled_library, "library_path", lambda: path)
    monkeypatch.setattr(compiled_library, "load_library", load_library.__wrapped__)
    return path


def refuse(message):
    """Check that the library is refused, in one line."""
    with pytest.raises(BackendUnavailable, match=message) as raised:
        compiled_library.load_library()
    assert "\n" not in str(raised.value)


def test_missing_library_is_named_or_the_reason_that_the_installation_left(library):
    refuse(r"was not built: there is no .*_harken\.so")
    library.with_name("_not_built.txt").write_text("there is no compiler\n")
    refuse(r"was not built: there is no compiler$")


@pytest.mark.parametrize(
    ("size", "message"), [(None, "cannot be loaded"), (20, "cut short"), (20_000, "cut short")]
)
def test_library_that_is_damaged_or_cut_short_is_reported(library, size, message):
    whole = library_path()
    if size and not (whole.exists() and whole.read_bytes().startswith(b"\x7fELF")):
        pytest.skip("there is no compiled library in ELF")
    library.write_bytes(whole.read_bytes()[:size] if size else b"not a library")
    refuse(message)


def test_library_of_another_version_is_refused(library, monkeypatch):
    library.touch()
    other = SimpleNamespace(harken_abi_version=lambda: ABI_VERSION + 1)
    monkeypatch.setattr(compiled_library, "CDLL", lambda path: other)
    refuse(rf"has interface {ABI_VERSION + 1}, not {ABI_VERSION}; pip install \. in a clone")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this platform counts all processors")
def test_processors_are_counted_where_a_sandbox_tells_no_affinity(monkeypatch):
    def refuse(pid):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert compiled_library.usable_processors() == os.cpu_count()


@pytest.mark.parametrize(
    ("share", "expected"), [("max 100000", 8), ("150000 100000", 2), ("10000 100000", 1), ("1600000 100000", 8)]
)
def test_container_with_a_share_of_the_processors_gets_as_many_threads(tmp_path, monkeypatch, share, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)}, raising=False)
    monkeypatch.setattr(compiled_library, "CONTAINER_SHARE", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(f"{share}\n")
    assert compiled_library.usable_processors() == expected


def test_log_mel_falls_back_to_numpy(monkeypatch):
    samples = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    monkeypatch.setattr("harken.audio.mel.load_library", compiled_library.load_library)
    mel._frames_function.cache_clear()
    try:
        assert log_mel(samples, 80).shape == (80, 25)
    finally:
        mel._frames_function.cache_clear()


def test_speech_detection_falls_back_to_numpy(monkeypatch):
    samples = np.random.default_rng(0).standard_normal(4 * CHUNK_SAMPLES).astype(np.float32)
    monkeypatch.setattr("harken.audio.silero.load_library", compiled_library.load_library)
    assert SpeechDetector().feed(samples).shape == (4,)


def test_native_engine_gives_the_reason_for_which_the_library_cannot_be_used(monkeypatch):
    monkeypatch.setattr(native_library, "load_library", native_library.load_library.__wrapped__)
    reason = native_library.unavailable_reason()
    assert reason is not None
    assert "was not built: there is no" in reason
    with pytest.raises(BackendUnavailable, match="was not built"):
        native_library.instruction_sets()
    monkeypatch.setattr(compiled_library, "load_library", SimpleNamespace)  # without functions
    assert (native_library.unavailable_reason() or "").startswith("the compiled library cannot be loaded: ")


def test_environment_chooses_the_instruction_set_else_it_is_the_best(monkeypatch):
    monkeypatch.setattr(native_library, "instruction_sets", lambda: ("fast", "portable"))
    monkeypatch.delenv("HARKEN_INSTRUCTION_SET", raising=False)
    assert native_library.chosen_instruction_set() == "fast"
    for asked, chosen in {"": "fast", "portable": "portable"}.items():
        monkeypatch.setenv("HARKEN_INSTRUCTION_SET", asked)
        assert native_library.chosen_instruction_set() == chosen
    monkeypatch.setenv("HARKEN_INSTRUCTION_SET", "abacus")
    with pytest.raises(OptionError) as caught:
        native_library.chosen_instruction_set()
    assert str(caught.value) == "HARKEN_INSTRUCTION_SET='abacus': allowed is fast or portable"

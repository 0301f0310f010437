"""The PyTorch backend as a program meets it: loaded by name, over real weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

import harken
from harken.errors import OptionError
from real_models import EXAMPLE, recognizer

NO_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import harken
from harken.errors import BackendUnavailable
try:
    harken.load("tiny.en", backend="torch", download=False)
except BackendUnavailable as error:
    print(error)
"""


@pytest.mark.real
@pytest.mark.slow
def test_it_writes_what_the_cpu_engine_writes() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")
    expected = list(recognizer("fp32").transcribe(EXAMPLE))
    loaded = harken.load("tiny.en", backend="torch", device="cpu", threads=1, download=False)
    segments = list(loaded.transcribe(EXAMPLE))
    assert [segment.tokens for segment in segments] == [segment.tokens for segment in expected]
    for segment, its in zip(segments, expected, strict=True):
        assert segment.avg_logprob == pytest.approx(its.avg_logprob, abs=1e-5)


@pytest.mark.real
def test_without_pytorch_it_says_how_to_get_it() -> None:
    recognizer("fp32")  # skips where there are no weights
    done = subprocess.run([sys.executable, "-c", NO_TORCH], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("PyTorch cannot be imported")
    assert done.stdout.strip().endswith("pip install 'harken[torch]'")


@pytest.mark.parametrize("backend", ["onnx", "numpy"])
def test_the_others_compute_on_the_cpu_only(backend: str) -> None:
    with pytest.raises(OptionError, match=f"device='cuda': allowed is auto or cpu with backend='{backend}'"):
        harken.load("tiny.en", backend=backend, device="cuda")

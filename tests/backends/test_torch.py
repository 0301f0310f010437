"""The PyTorch backend through the public API, with real weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

import harken
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
def test_torch_transcribes_the_text_of_the_cpu_engine() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]' in a clone of harken")
    expected = list(recognizer("fp32").transcribe(EXAMPLE))
    loaded = harken.load("tiny.en", backend="torch", device="cpu", threads=1, download=False)
    segments = list(loaded.transcribe(EXAMPLE))
    assert [segment.tokens for segment in segments] == [segment.tokens for segment in expected]
    for segment, expected_segment in zip(segments, expected, strict=True):
        assert segment.avg_logprob == pytest.approx(expected_segment.avg_logprob, abs=1e-5)


@pytest.mark.real
def test_missing_pytorch_is_reported_with_its_install_command() -> None:
    recognizer("fp32")  # skips where there are no weights
    done = subprocess.run([sys.executable, "-c", NO_TORCH], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("PyTorch cannot be imported")
    assert done.stdout.strip().endswith("pip install '.[torch]' in a clone of harken")

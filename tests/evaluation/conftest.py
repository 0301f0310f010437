"""The command line in a folder of its own, and two recordings that its commands measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import CliRunner
from fakes.measured import write_talks


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return CliRunner(capsys, monkeypatch)


@pytest.fixture
def talks(cli: CliRunner) -> Path:
    """A folder of two recordings of one window by one speaker, a manifest of their texts, and their turns."""
    return write_talks(Path("talks"))

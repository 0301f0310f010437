"""The command line in a folder with a recording, offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import CliRunner


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    AUDIO_FORMATS["wav s16"].write(Path("talk"), 0.5)
    return CliRunner(capsys, monkeypatch)

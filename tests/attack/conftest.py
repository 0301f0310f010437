"""The command line in a folder with a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import CliRunner


@pytest.fixture
def cli(cli: CliRunner) -> CliRunner:
    AUDIO_FORMATS["wav s16"].write(Path("talk"), 0.5)
    return cli

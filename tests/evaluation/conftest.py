"""Two recordings that the commands measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import CliRunner
from fakes.measured import write_talks


@pytest.fixture
def talks(cli: CliRunner) -> Path:
    """A folder of two recordings of one window by one speaker, a manifest of their texts, and their turns."""
    return write_talks(Path("talks"))

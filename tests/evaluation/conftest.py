"""Two recordings that the commands measure."""

from pathlib import Path

import pytest

from fakes.measured import write_talks


@pytest.fixture
def talks(cli):
    """A folder of two recordings of one window by one speaker, a manifest of their texts, and their turns."""
    return write_talks(Path("talks"))

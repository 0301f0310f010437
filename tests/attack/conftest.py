"""The command line in a folder with a recording."""

from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS


@pytest.fixture
def cli(cli):
    AUDIO_FORMATS["wav s16"].write(Path("talk"), 0.5)
    return cli

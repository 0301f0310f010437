"""The command line over a model of known texts or a fake live session."""

from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import window_text
from fakes.live_sessions import TalkingSession, hears


@pytest.fixture
def cli(cli):
    cli.use_texts(window_text(0, "unheard", 1))
    return cli


@pytest.fixture
def session(monkeypatch):
    """The live session of ``harken listen``, with a word for each tenth of a second."""
    return hears(monkeypatch, TalkingSession())


@pytest.fixture
def talk(cli):
    """A recording of 1.2 s in the current folder: two utterances of a fake session, and a half."""
    return AUDIO_FORMATS["wav s16"].write(Path("talk"), 1.2)

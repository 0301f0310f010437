"""The command line, run in this process over a model that recites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fakes.backends import TranscriptBackend, WindowText
from harken.api import Recognizer
from harken.cli import main
from tiny_models import TOKENIZER


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


@dataclass
class Face:
    """Runs commands in the current folder.

    Attributes
    ----------
    loaded : list of dict
        With which arguments a model was loaded.
    """

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.loaded: list[dict[str, Any]] = []
        self._recites = False

    def recites(self, *windows: WindowText) -> TranscriptBackend:
        """Put a model in place of every other."""
        backend = TranscriptBackend(*windows)
        self._recites = True

        def load(**given: Any) -> Recognizer:
            self.loaded.append(given)
            return Recognizer(backend, TOKENIZER, given["model"])

        self.monkeypatch.setattr("harken.cli.options.load", load)
        return backend

    def run(self, *arguments: object) -> Outcome:
        """Run ``harken`` with these arguments; a model that recites does so over noise, which is not speech."""
        given = [str(argument) for argument in arguments]
        if self._recites and "--vad" not in given and given[:1] in (["transcribe"], ["decode"], ["eval"]):
            given.append("--no-vad")
        self.capsys.readouterr()
        code = main(given)
        out, err = self.capsys.readouterr()
        return Outcome(code=code, out=out, err=err)

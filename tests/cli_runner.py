"""The command line, run in this process over a model of known texts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest

from fakes.backends import TranscriptBackend, WindowText
from harken.api import Recognizer
from harken.cli.root import main
from tiny_models import TOKENIZER

LOADING = ("model_options", "eval", "training")
"""Modules of the command line that load a model or what tells speakers apart."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@dataclass
class CliRunner:
    """A runner of commands in the current folder."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.loaded: list[dict[str, Any]] = []  # arguments of each load of a model
        self.loaders: dict[str, Callable[..., object]] = {}
        """Functions in place of `harken.load` and `harken.load_diarizer`, by these names."""
        self._uses_texts = False

    def use_texts(self, *windows: WindowText) -> TranscriptBackend:
        """Replace every model by one that returns texts, one for each window."""
        backend = TranscriptBackend(*windows)
        self._uses_texts = True

        def load(**given: Any) -> Recognizer:
            self.loaded.append(given)
            return Recognizer(backend, TOKENIZER, given["model"])

        self.loaders["load"] = load
        return backend

    def run(self, *arguments: object) -> Outcome:
        """Run ``harken`` with arguments; a model of known texts gets noise, so VAD is turned off."""
        given = [str(argument) for argument in arguments]
        if self._uses_texts and "--vad" not in given and given[:1] in (["transcribe"], ["decode"], ["eval"]):
            given.insert(1, "--no-vad")
        self.capsys.readouterr()
        with self.monkeypatch.context() as patch:
            for name, loader in self.loaders.items():
                for module in LOADING:
                    patch.setattr(f"harken.cli.{module}.{name}", loader, raising=False)
            code = main(given)
        out, err = self.capsys.readouterr()
        return Outcome(code=code, out=out, err=err)


def signal_at(
    patch: pytest.MonkeyPatch, place: Any, name: str, call: int, number: signal.Signals = signal.SIGTERM
) -> None:
    """Have a signal come at the beginning of a call of a function."""
    function: Callable[..., Any] = getattr(place, name)
    calls = count(1)

    def signalled(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(number)
        return function(*arguments, **options)

    patch.setattr(place, name, signalled)


def eventually(condition: Callable[[], object], limit_s: float = 60.0) -> bool:
    """Wait until a condition holds, and return whether it does."""
    until_s = monotonic() + limit_s
    while not condition() and monotonic() < until_s:
        sleep(0.005)
    return bool(condition())

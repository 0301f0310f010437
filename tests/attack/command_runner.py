"""A folder in which command lines run in this process, over a model of known texts, and can do no harm."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Self
from unittest import mock

import numpy as np
from processes import is_control, speech

from audio_files import AUDIO_FORMATS
from checkpoint_files import TINY, random_weights, write_openai
from fakes.backends import WINDOW_POSITIONS, TranscriptBackend, window_text
from fakes.live_sessions import FakeLiveSession
from harken.api import NO_ADAPTER, Recognizer
from harken.backend_factory import AUTO, NGRAM, BackendFactory
from harken.checkpoints import open_checkpoint, resolve_model, with_adapter
from harken.cli import main
from harken.errors import BackendUnavailable
from harken.text import Tokenizer
from tiny_models import TOKENIZER
from training_data import write_model

RECORDINGS = ("good.wav", "good.flac", "other.wav", "漢字.ogg")
MOST_BYTES = 3 << 30  # address space, of which the libraries reserve much


class Hang(BaseException):
    """The time of a line is up."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a command line.

    Parameters
    ----------
    code : int or None
        Exit code; None if it was stopped because it took too long.
    out, err : str
    elapsed_s : float
    faults : tuple of str
        Files that it changed or left, and connections.
    """

    code: int | None
    out: str
    err: str
    elapsed_s: float
    faults: tuple[str, ...]

    @property
    def control_characters(self) -> str:
        """The control characters on standard error, written as escapes."""
        return ascii("".join(sorted({character for character in self.err if is_control(character)})))[1:-1]

    @property
    def words(self) -> set[str]:
        """The words of the messages, and of the result unless it holds sound or pictures."""
        shown = self.out if len(self.out) < 20_000 else ""
        return {*re.findall(r"(?<![\w.-])nan(?![\w.-])", f"{self.err}\n{shown}".lower())}


class Sandbox:
    """A folder of recordings, manifests and rubbish; as a context it replaces model, microphone, hub and network.

    Parameters
    ----------
    root : Path
        An empty folder. Commands run three levels below, so that ``..`` stays inside.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "a" / "b" / "c"
        self.home.mkdir(parents=True)
        self._make_files()
        self.names = [
            path.relative_to(self.home).as_posix() for path in sorted(self.home.rglob("*")) if path.is_file()
        ] + ["tap", "folder", "model"]
        self._stamps_before = self._stamps()
        self._content = {path: path.read_bytes() for path in self._stamps_before}
        self._connections: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        stack = self._stack
        stack.callback(os.chdir, os.getcwd())
        os.chdir(self.home)
        cache, user = self.root / "cache", self.root / "user"
        user.mkdir()
        variables = {
            "HARKEN_CACHE": cache,
            "HOME": user,
            "HF_HOME": user / "hub",
            "XDG_CACHE_HOME": user / "cache",
        }
        # The runtimes, which doctor imports, report nothing under CI.
        settings = {name: str(path) for name, path in variables.items()} | {"CI": "true", "COLUMNS": "100"}
        stack.enter_context(mock.patch.dict(os.environ, settings))
        os.environ.pop("HARKEN_DEBUG", None)
        for slow in ("torch", "onnxruntime", "openvino"):  # an import that is cut short cannot be repeated
            with suppress(ImportError):
                import_module(slow)
        for target, replacement in self._replacements().items():
            stack.enter_context(mock.patch(target, replacement))
        portaudio = types.ModuleType("sounddevice")
        vars(portaudio).update(_fake_portaudio())
        trained = {f"harken.training.{name}": _fake_training(name) for name in ("adapt", "finetune", "distill")}
        stack.enter_context(mock.patch.dict(sys.modules, {"sounddevice": portaudio, **trained}))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, arguments: Sequence[str], stdin: str, limit_s: float) -> Result:
        """Run a command line, say what it changed, and put everything back."""
        data = (self.home / stdin).read_bytes() if stdin and (self.home / stdin).is_file() else b""
        streams = {
            name: io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for name in ("stdout", "stderr")
        }
        began = time.monotonic()
        code: int | None
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8")))
            for name, stream in streams.items():
                stack.enter_context(mock.patch.object(sys, name, stream))
            try:
                with _limited_memory(), _limited(limit_s):
                    code = main(list(arguments))
            except Hang:
                code = None
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
        elapsed_s = time.monotonic() - began
        out, err = (stream.buffer.getvalue().decode(errors="replace") for stream in streams.values())  # type: ignore[attr-defined]
        faults = [
            *self._changes(arguments, stdin, failed=code != 0),
            *(f"network: {where}" for where in self._connections),
        ]
        self._connections.clear()
        return Result(code=code, out=out, err=err, elapsed_s=elapsed_s, faults=tuple(faults))

    def _changes(self, arguments: Sequence[str], stdin: str, *, failed: bool) -> Iterator[str]:
        """Yield forbidden changes of files, and undo all; what failed may leave its results so far."""
        now = self._stamps()
        for path, stamp in self._stamps_before.items():
            if now.get(path) == stamp:
                continue
            content, name = self._content[path], path.relative_to(self.home).as_posix()
            if not path.is_file() or path.read_bytes() != content:
                if not self._is_output(name, arguments, stdin):
                    yield f"{name} was {'overwritten' if path in now else 'deleted'}"
                if path.is_dir():
                    shutil.rmtree(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        for path in now.keys() - self._content.keys():
            if path.name.startswith(".harken-") or (
                path.name.endswith((".part", ".partial", ".resume.jsonl")) and not failed
            ):
                yield f"left over: {path.relative_to(self.root)}"
            path.unlink()
        known = {parent for path in self._content for parent in path.parents} | {self.home / "folder"}
        for path in sorted(self.home.parent.parent.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink() and path not in known:
                shutil.rmtree(path)
        self._stamps_before = self._stamps()

    def _is_output(self, name: str, arguments: Sequence[str], stdin: str) -> bool:
        """Return whether the user named a file as an output, and as nothing else."""
        mentions = [
            index
            for index, argument in enumerate(arguments)
            if os.path.normpath(argument.split("=")[-1]) == name
        ]
        if len(mentions) != 1 or name == stdin:
            return False
        index = mentions[0]
        is_value = "=" in arguments[index] or arguments[index - 1].startswith("-")
        of_manifest = name in RECORDINGS[:2] and any(
            argument.endswith("jsonl") or argument in ("tap", ".") for argument in arguments
        )
        return is_value and not of_manifest

    def _stamps(self) -> dict[Path, tuple[int, int, int]]:
        """Return what changes with the content of each file, which is cheaper to read than the content."""
        paths = [
            path for path in self.home.parent.parent.rglob("*") if path.is_file() and not path.is_symlink()
        ]
        return {
            path: (found.st_mtime_ns, found.st_size, found.st_ino) for path in paths for found in [path.stat()]
        }

    def _make_files(self) -> None:
        home = self.home
        sound = np.concatenate([speech(0.3, 0.9), np.zeros(1_600)])
        AUDIO_FORMATS["wav s16"].write(home / "good", samples=sound)
        AUDIO_FORMATS["flac"].write(home / "good", samples=sound)
        AUDIO_FORMATS["wav s16"].write(home / "other", samples=sound[::-1])
        AUDIO_FORMATS["ogg opus"].write(home / "漢字", samples=speech(1, 1, 48_000))
        whole = (home / "good.wav").read_bytes()
        rubbish = {
            "empty.wav": b"",
            "header.wav": whole[:44],
            "cut.wav": whole[: len(whole) // 2],
            "one.wav": AUDIO_FORMATS["wav s16"].write(home / "one", samples=np.full(1, 0.1)).read_bytes(),
            "garbage.wav": np.random.default_rng(0).bytes(3_000),
            "notes.md": b"Dear diary,\n" * 40,
            "bad.jsonl": b'{"audio": "good.wav", "text": 7}\n{"audio"',
            "lists.jsonl": b"[1, 2]\nnull\n17\n",
            "deep.jsonl": b"[" * 100_000,
            "nan.jsonl": b'{"audio": "good.wav", "text": "a", "seconds": NaN}\n',
            "missing.jsonl": b'{"audio": "missing.wav", "text": "a"}\n',
            "model.pt": write_openai(home / "model.pt", TINY, random_weights()).read_bytes()[:5_000],
        }
        for name, content in rubbish.items():
            (home / name).write_bytes(content)
        lines = [{"audio": name, "text": "one dog", "language": "en"} for name in RECORDINGS[:2]]
        (home / "tap").mkdir()
        (home / "folder").mkdir()
        (home / "manifest.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        above = [line | {"audio": f"../{line['audio']}"} for line in lines]
        (home / "tap" / "manifest.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in above))
        write_model(home / "model")
        with suppress(OSError):
            os.symlink("loop", home / "loop")

    def _replacements(self) -> dict[str, Any]:
        from huggingface_hub import errors

        def not_here(*given: Any, **more: Any) -> None:
            raise errors.LocalEntryNotFoundError("the hub is not asked")

        def refuse(*address: Any, **more: Any) -> None:
            self._connections.append(repr(address[-1:] if address else more))
            raise OSError("no network")

        return {
            "harken.cli.options.load": _fake_load,
            "harken.cli.training.load": _fake_load,
            "harken.api.Recognizer.stream": lambda recognizer, options, **more: _fake_session(),
            "huggingface_hub.snapshot_download": not_here,
            "socket.getaddrinfo": refuse,
            "socket.create_connection": refuse,
            "socket.socket.connect" if hasattr(socket.socket, "connect") else "socket.socket": refuse,
        }


def _fake_load(model: str = "tiny.en", **given: Any) -> Recognizer:
    """Check what `harken.load` checks, and return a model of known texts."""
    assistant, adapter = given.pop("assistant", None), given.pop("adapter", None)
    revision, download = given.pop("revision", None), given.pop("download", True)
    engines = BackendFactory(**given)
    if engines.backend == "torch":
        raise BackendUnavailable("PyTorch is not tried here")
    if model != "tiny.en":
        checkpoint = open_checkpoint(resolve_model(model, revision=revision, download=download))
        Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    if adapter not in (None, NO_ADAPTER):
        with_adapter(open_checkpoint("model"), adapter)
    if assistant not in (None, AUTO, NGRAM):
        open_checkpoint(resolve_model(assistant, download=download), assistant=True)
    text = window_text(0, "Dogs", WINDOW_POSITIONS // 2, WINDOW_POSITIONS // 2, "house", WINDOW_POSITIONS)
    return Recognizer(TranscriptBackend(text), TOKENIZER, model)


def _fake_session() -> FakeLiveSession:
    session = FakeLiveSession()
    vars(session)["config"] = session.plan.config
    return session


def _fake_training(name: str) -> types.ModuleType:
    """Return a module of training that takes the task, learns nothing, and says how well."""
    module = types.ModuleType(f"harken.training.{name}")

    def train(task: Any, *given: Any) -> bool:
        from harken.training.acceptance import Acceptance
        from harken.training.run_directory import EvalPoint

        task.create_or_resume(task=name)
        held_out = Acceptance(positions=1, correct=1, forward_passes=1)
        task.run_directory.save_learning_curve([EvalPoint(step=0, loss=None, held_out=held_out)])
        return True

    vars(module).update({name: train, "InitialModel": lambda **given: given})
    return module


def _fake_portaudio() -> dict[str, Any]:
    """Return the contents of a module of microphones, of which there are none."""

    class PortAudioError(Exception):
        """An error of the library."""

    def query_devices(device: Any = None, kind: str | None = None) -> Any:
        if kind is None:
            return []
        raise ValueError(f"No input device matching {device!r}")

    default = types.SimpleNamespace(device=[-1, -1])
    return {"PortAudioError": PortAudioError, "query_devices": query_devices, "default": default}


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Let the process take `MOST_BYTES` more in the block, where the platform can, so that nobody else is harmed."""
    if sys.platform != "linux":
        yield
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the block after some seconds, where the platform has alarms."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # again, if it is swallowed
        raise Hang

    if not hasattr(signal, "setitimer"):
        yield
        return
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

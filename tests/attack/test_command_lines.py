"""Nonsense command lines, made from the options that commands declare: a result, or one line and a documented code.

Everything runs in this process, in a folder of its own, over a model of known texts: nothing is trained, downloaded or
heard, and a connection is a fault. ``HARKEN_LINES=10000 pytest tests/attack/test_command_lines.py`` tries ten thousand.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Self
from unittest import mock

import click
import numpy as np
import pytest
from processes import Ended, error_faults, speech

from audio_files import AUDIO_FORMATS
from checkpoint_files import TINY, random_weights, write_openai
from fakes.backends import WINDOW_POSITIONS, TranscriptBackend, window_text
from fakes.live_sessions import FakeLiveSession
from harken.api import NO_ADAPTER, Recognizer
from harken.backend_factory import AUTO, NGRAM, BackendFactory
from harken.checkpoints import open_checkpoint, resolve_model, with_adapter
from harken.cli import main
from harken.cli.root import COMMANDS, harken
from harken.errors import BackendUnavailable
from harken.text import Tokenizer
from tiny_models import TOKENIZER
from training_data import write_model

LINES, SEED = int(os.environ.get("HARKEN_LINES", "80")), 12
RECORDINGS = ("good.wav", "good.flac", "other.wav", "漢字.ogg")
MOST_BYTES = 3 << 30  # address space, of which the libraries reserve much
LIMIT_S = 30.0  # a line that takes longer hangs
WEIGHTS = {"transcribe": 6, "listen": 4, "eval": 3, "decode": 3, "plot": 2, "bench": 2}
# fmt: off
NUMBERS = [
    "nan", "inf", "-inf", "-0", "0", "1", "-1", "0.5", "1e308", "1e-308", "1e999",
    "1000000000000000000000000000000", "-1000000000000000000000000000000", "0x10", "1_000", "none", "1,2,3",
    "0,nan", "5,1", "1,1", "1,,2", "１２", "½",
]
TEXTS = [
    *NUMBERS,
    "None", "null", "true", "auto", "all", "-", "--", ",", ",,,", "en,xx", "srt,txt", "srt,srt", "x,y,z", "*", "[",
    "(", "(?", "x{1,99999999999}", "(a+)+$", "%s", "{}", "$HOME", "`id`", "<|en|>", "<|endoftext|>", "", " ", "\t",
    "\n", "a\nb", "x" * 5000, "漢" * 400, "\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\udcff", "bad\udcff.wav",
    "a\u202eb", "e\u0301", "\ufeff", "\\", "'", '"',
]
MODELS = ("model", "model", "tiny.en", "ngram", "auto", "model.pt", "large-v3", "nobody/nothing")
PATHS = [
    "missing.wav", "folder", "folder/", ".", "/dev/null", "/dev/full", "new/deep/er", "-x.wav", "--quiet", "*.wav",
    "[x].wav", "good.wav/inside", "nowhere/out.json", "../up.txt", "out.srt", "out.json", "out.wav", "out.html",
    "out.png", "out.words.tsv", "loop", "", "x" * 300, "漢字.wav", "\x1b[31m.srt", "bad\udcff.srt", "bad\udcff.html",
    "a\nb.txt",
]
# fmt: on


@dataclass(frozen=True)
class Line:
    """A command line; the same seed and number make the same one."""

    number: int
    arguments: tuple[str, ...]
    stdin: str  # a file of the sandbox, or empty


def walk(name: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and its subcommands; serve would open a port and wait, and has tests of its own."""
    context = click.Context(harken)
    command = harken.get_command(context, name)
    if command is None or name == "serve":
        return
    yield (name,), command
    for member in getattr(command, "commands", {}).values():
        yield (name, member.name), member


class Generator:
    """A maker of command lines over files of these names."""

    def __init__(self, seed: int, files: Sequence[str]) -> None:
        self.seed, self.files = seed, files
        self.commands = [((), harken), *(found for name in COMMANDS for found in walk(name))]
        self.weights = [WEIGHTS.get(path[0] if path else "", 1) for path, _ in self.commands]

    def line(self, number: int) -> Line:
        """Make the line of a number."""
        rng = random.Random(f"{self.seed} {number}")
        path, command = rng.choices(self.commands, self.weights)[0]
        named = [*path]
        if rng.random() < 0.02 and named:
            named[-1] = misspell(rng, named[-1])
        given: list[list[str]] = []
        options = [param for param in command.params if isinstance(param, click.Option)]
        for option in options:
            if option.required and rng.random() < 0.9:
                given.append(self.option(rng, option))
        chosen = rng.choices(options, k=min(int(rng.expovariate(0.4)), 9)) if options else []
        given += [self.option(rng, option) for option in chosen]
        for argument in command.params:
            if isinstance(argument, click.Argument):
                given += [[self.argument(rng, argument)] for _ in range(self.argument_count(rng, argument))]
        for spoil, share in SPOILERS:
            if rng.random() < share:
                given.append(spoil(rng, options))
        rng.shuffle(given)
        arguments = [*named, *(part for parts in given for part in parts)]
        if rng.random() < 0.02 and len(arguments) > 1:
            arguments.pop()  # often the value of an option
        stdin = rng.choice(self.files) if rng.random() < 0.3 else ""
        return Line(number, tuple(argument.replace("\0", "") for argument in arguments), stdin)

    def argument_count(self, rng: random.Random, argument: click.Argument) -> int:
        return rng.choice([1, 1, 1, 2, 2, 3, 0]) if argument.nargs == -1 else rng.choice([1] * 12 + [0, 2])

    def argument(self, rng: random.Random, argument: click.Argument) -> str:
        if argument.name == "model" and rng.random() < 0.6:
            return rng.choice(MODELS)
        return self.file(rng)

    def option(self, rng: random.Random, option: click.Option) -> list[str]:
        """Return an option with its value."""
        name = rng.choice([*option.opts, *option.secondary_opts])
        if rng.random() < 0.01:
            name = misspell(rng, name)
        if rng.random() < 0.05:
            name = name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name
        if option.is_flag:
            return [name] if rng.random() < 0.97 else [f"{name}={rng.choice(TEXTS)}"]
        value = self.value(rng, option)
        return [f"{name}={value}"] if name.startswith("--") and rng.random() < 0.3 else [name, value]

    def value(self, rng: random.Random, option: click.Option) -> str:
        chance = rng.random()
        if chance < 0.45:
            return self.sensible_value(rng, option)
        if chance < 0.55:
            return self.file(rng)
        is_number = any(word in option.type.name.lower() for word in ("int", "float"))
        return rng.choice(NUMBERS if is_number and chance < 0.9 else TEXTS)

    def sensible_value(self, rng: random.Random, option: click.Option) -> str:
        """Return a value that is probably allowed, or at the edge of what is."""
        kind, default = option.type, option.default
        if isinstance(kind, click.Choice):
            return str(rng.choice(list(kind.choices)))
        if isinstance(kind, click.IntRange | click.FloatRange):
            edges = [edge for edge in (kind.min, kind.max) if edge is not None]
            return str(rng.choice([*edges, *(edge + 1 for edge in edges), *(edge - 1 for edge in edges), 2]))
        named = kind.name.lower()
        if "int" in named:
            return rng.choice(["0", "1", "2", "3"])
        if "float" in named:
            return rng.choice(["0", "0.1", "0.5", "1", "2", "none"])
        if option.name in ("model", "assistant") and rng.random() < 0.7:
            return rng.choice(MODELS)
        if named.startswith("path,") and rng.random() < 0.7:
            return rng.choice(["manifest.jsonl", "tap", "manifest.jsonl,tap"])
        if option.metavar in ("FILE", "DIR") or "path" in named:
            return self.file(rng)
        words = [
            *(str(default).split(",") if isinstance(default, str) else []),
            "en",
            "srt",
            "txt",
            "tiny.en",
            "hello",
        ]
        return rng.choice(words)

    def file(self, rng: random.Random) -> str:
        chance = rng.random()
        if chance < 0.45:
            return rng.choice(["good.wav", "good.flac", "other.wav", "manifest.jsonl"])
        return rng.choice(self.files) if chance < 0.75 else rng.choice(PATHS)


def misspell(rng: random.Random, name: str) -> str:
    """Drop, double or change a letter of a name."""
    at = rng.randrange(len(name))
    return name[:at] + rng.choice(["", name[at] * 2, "x", "=", "_"]) + name[at + 1 :]


def _unknown(rng: random.Random, options: Sequence[click.Option]) -> list[str]:
    return [rng.choice(["--unknown", "-Z", "--no", "---", "--=", "-", "--help", "--version", "-h"])]


def _stray(rng: random.Random, options: Sequence[click.Option]) -> list[str]:
    return [rng.choice(TEXTS)]


def _without_value(rng: random.Random, options: Sequence[click.Option]) -> list[str]:
    return [rng.choice(rng.choice(options).opts)] if options else ["--"]


SPOILERS = ((_unknown, 0.04), (_stray, 0.06), (_without_value, 0.03))


class Hang(BaseException):
    """The time of a line is up."""


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

    def run(self, line: Line) -> list[str]:
        """Run a command line, put everything back, and return what it did that none may do."""
        data = (
            (self.home / line.stdin).read_bytes() if line.stdin and (self.home / line.stdin).is_file() else b""
        )
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        stdin = io.TextIOWrapper(io.BytesIO(data), "utf-8")
        with mock.patch.multiple(sys, stdin=stdin, stdout=out, stderr=err):
            try:
                with _limited_memory(), _limited(LIMIT_S):
                    code = main(list(line.arguments), load=_fake_load)
            except Hang:
                code = -1
        ended = Ended(code=code, out=_text(out), err=_text(err))
        faults = [*self._changes(line.arguments, line.stdin, failed=code != 0)]
        faults += [f"network: {where}" for where in self._connections]
        self._connections.clear()
        return faults + faults_of(line, ended)

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
            "harken.api.Recognizer.stream": lambda recognizer, options, **more: _fake_session(),
            "huggingface_hub.snapshot_download": not_here,
            "socket.getaddrinfo": refuse,
            "socket.create_connection": refuse,
            "socket.socket.connect" if hasattr(socket.socket, "connect") else "socket.socket": refuse,
        }


def _text(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(errors="replace")


def faults_of(line: Line, ended: Ended) -> list[str]:
    """Return what is wrong with the end of a command line."""
    typed = " ".join(line.arguments).lower()
    if ended.code == -1:
        asked_for = re.search(r"--repeat[= ]\+?[0_]*[1-9][\d_]{2,}", typed)
        return [] if asked_for else [f"hangs: stopped after {LIMIT_S:g} s"]
    faults = [] if ended.code == 1 else error_faults(ended, typed)
    if ended.code not in (0, 1, 141) and not ended.err.endswith("\n"):
        faults.append("the line does not end")
    if ended.err.endswith("harken: \n"):
        faults.append("an empty message")
    if "Warning:" in ended.err:
        faults.append("a warning of Python")
    if (
        "nan" not in typed
        and len(ended.out) < 20_000
        and re.search(r"(?<![\w.-])nan(?![\w.-])", ended.out.lower())
    ):
        faults.append("nan in a result")
    return [f"{fault}: {ended.err.strip()[-200:]}" for fault in faults]


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


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("lines")) as sandbox:
        yield sandbox


@pytest.mark.timeout(120 + LINES)
def test_nonsense_ends_in_a_result_or_in_one_line(sandbox: Sandbox) -> None:
    generator = Generator(SEED, sandbox.names)
    lines = map(generator.line, range(LINES))
    faults = [f"{line}: {found}" for line in lines if (found := sandbox.run(line))]
    assert not faults, "\n".join(faults)


def test_lines_cover_every_command_and_option(sandbox: Sandbox) -> None:
    generator = Generator(SEED, sandbox.names)
    untried = {
        (path[0], *option.opts, *option.secondary_opts)
        for path, command in generator.commands
        for option in command.params
        if path and isinstance(option, click.Option)
    } | {(path[0],) for path, _ in generator.commands if path}
    for number in range(20_000):
        command, *given = [argument.partition("=")[0] for argument in generator.line(number).arguments] or [""]
        untried -= {
            (name, *options)
            for name, *options in untried
            if name == command and (not options or {*options} & {*given})
        }
        if not untried:
            break
    assert not untried

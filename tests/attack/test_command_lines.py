"""Nonsense command lines, made from the options that commands declare: a result, or one line and a documented code.

Everything runs in this process, in a folder of its own, over a model of known texts: nothing is trained, downloaded or
heard, and a connection is a fault. ``HARKEN_LINES=10000 pytest tests/attack/test_command_lines.py`` tries ten thousand.
"""

import io
import json
import os
import random
import re
import shutil
import signal
import sys
import types
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path

import click
import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from checkpoint_files import TINY, random_weights, write_openai
from cli_runner import Outcome
from fakes.backends import WINDOW_POSITIONS, TranscriptBackend, window_text
from fakes.live_sessions import TalkingSession
from fakes.portaudio import PortAudio
from harken.api import Recognizer
from harken.backend_factory import AUTO, NGRAM, BackendFactory
from harken.checkpoints import open_checkpoint, resolve_model, with_adapters
from harken.cli.root import COMMANDS, harken
from harken.errors import BackendUnavailable
from processes import error_faults, files_of, speech
from tiny_models import TOKENIZER
from training_data import write_model

LINES, SEED = int(os.environ.get("HARKEN_LINES", "60")), 12
LIMIT_S = 30.0
"""A line that takes longer hangs."""
MOST_BYTES = 3 << 30
"""Address space that a line may take, so that nobody else is harmed; the libraries reserve much."""
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
STRAY = [*TEXTS, *["--unknown", "-Z", "--no", "---", "--=", "-", "--help", "--version", "-h"] * 4]
MODELS = ("model", "model", "tiny.en", "ngram", "auto", "model.pt", "large-v3", "nobody/nothing")
PATHS = [
    "missing.wav", "folder", "folder/", ".", "/dev/null", "/dev/full", "new/deep/er", "-x.wav", "--quiet", "*.wav",
    "[x].wav", "good.wav/inside", "nowhere/out.json", "../up.txt", "out.srt", "out.json", "out.wav", "out.html",
    "out.png", "out.words.tsv", "loop", "", "x" * 300, "漢字.wav", "\x1b[31m.srt", "bad\udcff.srt", "bad\udcff.html",
    "a\nb.txt",
]
# fmt: on


class Generator:
    """A maker of command lines over files of these names; the same number makes the same line."""

    def __init__(self, files):
        self.files = files
        self.commands = [((), harken)]
        for name in COMMANDS.keys() - {"serve"}:  # which would open a port and wait
            command = harken.get_command(click.Context(harken), name)
            members = getattr(command, "commands", {}).values()
            self.commands += [((name,), command), *(((name, member.name), member) for member in members)]
        self.commands.sort(key=lambda pair: pair[0])
        self.weights = [WEIGHTS.get(path[0] if path else "", 1) for path, _ in self.commands]

    def line(self, number):
        rng = random.Random(f"{SEED} {number}")
        path, command = rng.choices(self.commands, self.weights)[0]
        options = [param for param in command.params if isinstance(param, click.Option)]
        chosen = [option for option in options if option.required and rng.random() < 0.9]
        chosen += rng.choices(options, k=min(int(rng.expovariate(0.4)), 9)) if options else []
        given = [self._option(rng, option) for option in chosen]
        for argument in command.params:
            if isinstance(argument, click.Argument):
                count = rng.choice([1, 1, 1, 2, 2, 3, 0] if argument.nargs == -1 else [1] * 12 + [0, 2])
                given += [[self._argument(rng, argument)] for _ in range(count)]
        if rng.random() < 0.1:
            given.append([rng.choice(STRAY)])
        rng.shuffle(given)
        line = [*path, *chain.from_iterable(given)]
        if line and rng.random() < 0.06:
            at = rng.randrange(len(line))
            line[at] = misspell(rng, line[at])
        if rng.random() < 0.04 and len(line) > 1:
            line.pop()  # often the value of an option
        return [word.replace("\0", "") for word in line]

    def _argument(self, rng, argument):
        return rng.choice(MODELS) if argument.name == "model" and rng.random() < 0.6 else self._file(rng)

    def _option(self, rng, option):
        name = rng.choice([*option.opts, *option.secondary_opts])
        if option.is_flag:
            return [name] if rng.random() < 0.97 else [f"{name}={rng.choice(TEXTS)}"]
        value = self._value(rng, option)
        return [f"{name}={value}"] if name.startswith("--") and rng.random() < 0.3 else [name, value]

    def _value(self, rng, option):
        chance = rng.random()
        if chance < 0.45:
            return self._sensible_value(rng, option)
        if chance < 0.55:
            return self._file(rng)
        is_number = any(word in option.type.name.lower() for word in ("int", "float"))
        return rng.choice(NUMBERS if is_number and chance < 0.9 else TEXTS)

    def _sensible_value(self, rng, option):
        """Return a value that is probably allowed, or at the edge of what is."""
        kind, named = option.type, option.type.name.lower()
        if isinstance(kind, click.Choice):
            return str(rng.choice(list(kind.choices)))
        if isinstance(kind, click.IntRange | click.FloatRange):
            edges = [edge for edge in (kind.min, kind.max) if edge is not None]
            return str(rng.choice([2, *(edge + step for edge in edges for step in (-1, 0, 1))]))
        if "int" in named or "float" in named:
            return rng.choice(["0", "1", "2", "3"] if "int" in named else ["0", "0.1", "0.5", "1", "2", "none"])
        if option.name in ("model", "assistant") and rng.random() < 0.7:
            return rng.choice(MODELS)
        if named.startswith("path,") and rng.random() < 0.7:
            return rng.choice(["manifest.jsonl", "tap", "manifest.jsonl,tap"])
        if option.metavar in ("FILE", "DIR") or "path" in named:
            return self._file(rng)
        usual = option.default.split(",") if isinstance(option.default, str) else []
        return rng.choice([*usual, "en", "srt", "txt", "tiny.en", "hello"])

    def _file(self, rng):
        chance = rng.random()
        if chance < 0.45:
            return rng.choice(["good.wav", "good.flac", "other.wav", "manifest.jsonl"])
        return rng.choice(self.files) if chance < 0.75 else rng.choice(PATHS)


def misspell(rng, word):
    """Drop, double or change a letter."""
    at = rng.randrange(len(word) or 1)
    return word[:at] + rng.choice(["", word[at : at + 1] * 2, "x", "=", "_"]) + word[at + 1 :]


class Sandbox:
    """A folder of recordings, manifests and rubbish; commands run three levels below `root`, so ``..`` stays inside."""

    def __init__(self, root):
        self.root, self.home = root / "a", root / "a" / "b" / "c"
        self.home.mkdir(parents=True)
        make_files(self.home)
        self._content = files_of(self.root)
        self._folders = {path for path in self.root.rglob("*") if path.is_dir()}
        self.names = [name.removeprefix("b/c/") for name in self._content] + ["tap", "folder", "model"]

    def changes(self, line, *, failed):
        """Yield forbidden changes of files, and undo all; what failed may leave its results so far."""
        now = files_of(self.root)
        for name in now.keys() - self._content.keys():
            unfinished = name.endswith((".part", ".partial", ".resume.jsonl")) and not failed
            if Path(name).name.startswith(".harken-") or unfinished:
                yield f"left over: {name}"
            (self.root / name).unlink()
        for folder in sorted(self.root.rglob("*"), reverse=True):
            if folder.is_dir() and not folder.is_symlink() and folder not in self._folders:
                shutil.rmtree(folder)
        for name in [name for name, content in self._content.items() if now.get(name) != content]:
            if not is_output(name.removeprefix("b/c/"), line):
                yield f"{name} was {'overwritten' if name in now else 'deleted'}"
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(self._content[name])


def is_output(name, line):
    """Return whether the user named a file as an output, and as nothing else."""
    mentions = [at for at, word in enumerate(line) if os.path.normpath(word.split("=")[-1]) == name]
    if len(mentions) != 1:
        return False
    (at,) = mentions
    read_by_manifest = name.startswith("good.") and any(
        word.endswith("jsonl") or word in ("tap", ".") for word in line
    )
    return ("=" in line[at] or line[at - 1].startswith("-")) and not read_by_manifest


def make_files(home):
    sound = np.concatenate([speech(0.3, 0.9), np.zeros(1_600)])
    AUDIO_FORMATS["flac"].write(home / "good", samples=sound)
    AUDIO_FORMATS["wav s16"].write(home / "other", samples=sound[::-1])
    AUDIO_FORMATS["wav s16"].write(home / "one", samples=np.full(1, 0.1))
    AUDIO_FORMATS["ogg opus"].write(home / "漢字", samples=speech(1, 1, 48_000))
    whole = AUDIO_FORMATS["wav s16"].write(home / "good", samples=sound).read_bytes()
    lines = [{"audio": name, "text": "one dog", "language": "en"} for name in ("good.wav", "good.flac")]
    above = [line | {"audio": f"../{line['audio']}"} for line in lines]
    rubbish = {
        "empty.wav": b"",
        "header.wav": whole[:44],
        "cut.wav": whole[: len(whole) // 2],
        "garbage.wav": np.random.default_rng(0).bytes(3_000),
        "notes.md": b"Dear diary,\n" * 40,
        "bad.jsonl": b'{"audio": "good.wav", "text": 7}\n{"audio"',
        "lists.jsonl": b"[1, 2]\nnull\n17\n",
        "deep.jsonl": b"[" * 100_000,
        "nan.jsonl": b'{"audio": "good.wav", "text": "a", "seconds": NaN}\n',
        "missing.jsonl": b'{"audio": "missing.wav", "text": "a"}\n',
        "model.pt": write_openai(home / "model.pt", TINY, random_weights()).read_bytes()[:5_000],
        "manifest.jsonl": "".join(f"{json.dumps(line)}\n" for line in lines).encode(),
        "tap/manifest.jsonl": "".join(f"{json.dumps(line)}\n" for line in above).encode(),
    }
    for folder in ("tap", "folder"):
        (home / folder).mkdir()
    for name, content in rubbish.items():
        (home / name).write_bytes(content)
    write_model(home / "model")
    with suppress(OSError):
        os.symlink("loop", home / "loop")


def faults_of(line, outcome):
    """Return what is wrong with the end of a command line."""
    typed = " ".join(line).lower()
    if outcome.code == -1:
        asked_for = re.search(r"--repeat[= ]\+?[0_]*[1-9][\d_]{2,}", typed)
        return [] if asked_for else [f"hangs: stopped after {LIMIT_S:g} s"]
    unended = outcome.code not in (0, 1, 141) and not outcome.err.endswith("\n")
    nan = "nan" not in typed and re.search(r"(?<![\w.-])nan(?![\w.-])", outcome.out[:20_000].lower())
    found = {
        "the line does not end": unended,
        "an empty message": outcome.err.endswith("harken: \n"),
        "a warning of Python": "Warning:" in outcome.err,
        "nan in a result": nan,
    }
    faults = [] if outcome.code == 1 else error_faults(outcome, typed)
    faults += [fault for fault, is_found in found.items() if is_found]
    return [f"{fault}: {outcome.err.strip()[-200:]}" for fault in faults]


def fake_load(model="tiny.en", **given):
    """Check what `harken.load` checks, and return a model of known texts."""
    assistant, adapter = given.pop("assistant", None), given.pop("adapter", None)
    revision, download = given.pop("revision", None), given.pop("download", True)
    if BackendFactory(**given).backend == "torch":
        raise BackendUnavailable("PyTorch is not tried here")
    if model != "tiny.en":
        checkpoint = open_checkpoint(resolve_model(model, revision=revision, download=download))
        checkpoint.vocabulary.tokenizer(checkpoint.dims.n_vocab)
    if adapter is not None:
        with_adapters(open_checkpoint("model"), adapter)
    if assistant not in (None, AUTO, NGRAM):
        open_checkpoint(resolve_model(assistant, download=download), assistant=True)
    text = window_text(0, "Dogs", WINDOW_POSITIONS // 2, WINDOW_POSITIONS // 2, "house", WINDOW_POSITIONS)
    return Recognizer(TranscriptBackend(text), TOKENIZER, model)


def fake_training(name):
    """Return a module of training that takes the task, learns nothing, and says how well."""

    def train(task, *given):
        from harken.training.objective import Acceptance
        from harken.training.run_directory import EvalPoint

        task.create_or_resume(task=name)
        held_out = Acceptance(positions=1, correct=1, forward_passes=1)
        task.run_directory.save_learning_curve([EvalPoint(step=0, loss=None, held_out=held_out)])
        return True

    module = types.ModuleType(f"harken.training.{name}")
    vars(module).update({name: train, "InitialModel": lambda **given: given})
    return module


class Hang(BaseException):
    """The time of a line is up."""


@contextmanager
def limited_memory_and_time():
    """Bound what the block takes, and raise `Hang` after some seconds, where the platform can."""
    if sys.platform != "linux":
        yield
        return
    import resource

    def stop(*_):
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # again, if it is swallowed
        raise Hang

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, limits[1]))
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path / "root")


@pytest.fixture
def connections(cli, sandbox, tmp_path):
    """The addresses asked for; model, microphone, hub and network are replaced."""
    from huggingface_hub import errors

    def not_here(*given, **more):
        raise errors.LocalEntryNotFoundError("the hub is not asked")

    def refuse(*address, **more):
        asked.append(address)
        raise OSError("no network")

    asked = []
    patch = cli.monkeypatch
    patch.chdir(sandbox.home)
    # The runtimes, which doctor imports, report nothing under CI.
    folders = {name: str(tmp_path / name) for name in ("HARKEN_CACHE", "HOME", "HF_HOME", "XDG_CACHE_HOME")}
    for name, value in {**folders, "CI": "true", "COLUMNS": "100"}.items():
        patch.setenv(name, value)
    patch.delenv("HARKEN_DEBUG", raising=False)
    for slow in ("torch", "onnxruntime", "openvino"):  # an import that is cut short cannot be repeated
        with suppress(ImportError):
            import_module(slow)
    patch.setattr(Recognizer, "stream", lambda *given, **more: TalkingSession(), raising=False)
    patch.setattr("huggingface_hub.snapshot_download", not_here)
    for name in ("getaddrinfo", "create_connection", "socket.connect"):
        patch.setattr(f"socket.{name}", refuse)
    patch.setitem(sys.modules, "sounddevice", PortAudio())
    for name in ("adapt", "finetune", "distill"):
        patch.setitem(sys.modules, f"harken.training.{name}", fake_training(name))
    cli.loaders["load"] = fake_load
    return asked


@pytest.mark.timeout(120 + LINES)
def test_nonsense_ends_in_a_result_or_in_one_line(cli, sandbox, connections):
    generator, faults = Generator(sandbox.names), []
    for number in range(LINES):
        line = generator.line(number)
        stdin = (sandbox.home / sandbox.names[number % (len(sandbox.names) - 3)]).read_bytes()
        cli.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        try:
            with limited_memory_and_time():
                outcome = cli.run(*line)
        except Hang:
            outcome = Outcome(code=-1, out="", err="")
        found = [*sandbox.changes(line, failed=outcome.code != 0), *faults_of(line, outcome)]
        found += [f"network: {address}" for address in connections]
        connections.clear()
        faults += [f"{number} {line}: {fault}" for fault in found]
    assert not faults, "\n".join(faults)

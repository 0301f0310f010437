"""Runs nonsense command lines made from the option tables of click, so that new options are tried as they come.

Run it as a program::

    python tests/attack/command_lines.py --count 10000 --seed 1
    python tests/attack/command_lines.py --seed 1 --only 4711     # one line again, in full

Everything runs in this process, in a folder of its own, over a model of known texts: nothing is trained, downloaded or
heard, and a connection is a fault. What must hold for every line is in `faults_of`.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import program_path  # noqa: F401
from command_runner import Result, Sandbox

from harken.cli.exits import EXITS, UNEXPECTED
from harken.cli.root import COMMANDS, harken

CODES = {exit.code for exit in EXITS} - {UNEXPECTED}
SLOWEST_S = 10.0
WEIGHTS = {"transcribe": 6, "listen": 4, "eval": 3, "decode": 3, "plot": 2, "bench": 2}
NUMBERS = [
    *(
        "nan",
        "inf",
        "-inf",
        "-0",
        "0",
        "1",
        "-1",
        "0.5",
        "1e308",
        "1e-308",
        "1e999",
        str(10**30),
        str(-(10**30)),
    ),
    *("0x10", "1_000", "１２", "½", "none", "1,2,3", "0,nan", "5,1", "1,1", "1,,2"),
]
TEXTS = [
    *NUMBERS,
    *("", " ", "\t", "\n", "a\nb", "None", "null", "true", "auto", "all", "-", "--", "x" * 5000, "漢" * 400),
    *(
        "\x1b]0;title\x07",
        "\x1b[2J",
        "\x9b31m",
        "\udcff",
        "bad\udcff.wav",
        "a\u202eb",
        "e\u0301",
        "\ufeff",
        "\\",
    ),
    *(",", ",,,", "en,xx", "srt,txt", "srt,srt", "x,y,z", "*", "[", "(", "(?", "x{1,99999999999}", "(a+)+$"),
    *("%s", "{}", "$HOME", "`id`", "'", '"', "<|en|>", "<|endoftext|>"),
]
MODELS = ("model", "model", "tiny.en", "ngram", "auto", "model.pt", "large-v3", "nobody/nothing")
PATHS = [
    *(
        "missing.wav",
        "folder",
        "folder/",
        ".",
        "",
        "/dev/null",
        "/dev/full",
        "new/deep/er",
        "x" * 300,
        "漢字.wav",
    ),
    *(
        "-x.wav",
        "--quiet",
        "*.wav",
        "[x].wav",
        "good.wav/inside",
        "nowhere/out.json",
        "../up.txt",
        "out.srt",
        "out.json",
    ),
    *(
        "out.wav",
        "out.html",
        "out.png",
        "out.words.tsv",
        "\x1b[31m.srt",
        "bad\udcff.srt",
        "bad\udcff.html",
        "loop",
        "a\nb.txt",
    ),
]


@dataclass(frozen=True)
class Line:
    """A command line.

    Parameters
    ----------
    number : int
        The same seed and number make the same line.
    arguments : tuple of str
    stdin : str
        A file of the sandbox, or empty.
    """

    number: int
    arguments: tuple[str, ...]
    stdin: str

    @property
    def command(self) -> str:
        """The command, or what stands in its place."""
        return self.arguments[0] if self.arguments else ""

    def __str__(self) -> str:
        text = "harken " + " ".join(shorten(argument) for argument in self.arguments)
        return f"{text} < {self.stdin}" if self.stdin else text


def shorten(argument: str) -> str:
    """Return an argument as a shell would take it, with the middle of a long one left out."""
    text = repr(argument) if not argument.isidentifier() and not argument.startswith("--") else argument
    return text if len(text) < 60 else f"{text[:25]}...{text[-10:]}({len(argument)})"


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its path."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    yield path, command
    for name in command.list_commands(context):
        member = command.get_command(context, name)
        assert member
        yield from walk(member, (*path, name))


class Generator:
    """A maker of command lines.

    Parameters
    ----------
    seed : int
    files : sequence of str
        Names of files that are there.
    """

    def __init__(self, seed: int, files: Sequence[str]) -> None:
        self.seed, self.files = seed, files
        # serve would open a port and wait; tests/serve has its command lines
        self.commands = [(path, command) for path, command in walk(harken) if path != ("serve",)]
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


def faults_of(line: Line, result: Result) -> list[str]:
    """Return what a command line did that none may do."""
    typed = " ".join(line.arguments).lower()
    faults = [*result.faults]
    if result.code is None and re.search(r"--repeat[= ]\+?[0_]*[1-9][\d_]{2,}", typed):
        return faults  # as long as it was asked to take
    if result.code is None:
        return [*faults, f"hangs: stopped after {SLOWEST_S:g} s"]
    if result.code not in CODES:
        faults.append(f"exit code {result.code}: {result.err.strip()[-200:]}")
    last = result.err.splitlines()[-1:] or [""]
    if result.code not in (0, 1, 141) and not (last[0].startswith("harken: ") and result.err.endswith("\n")):
        faults.append(f"exit code {result.code} ends with {last[0][-100:]!r}")
    if result.code not in (0, 1, 141) and len(last[0]) <= len("harken: "):
        faults.append("an empty message")
    if "Traceback" in result.err:
        faults.append("a traceback")
    if "Warning:" in result.err:
        faults.append(f"a warning of Python: {result.err.strip()[-200:]}")
    if result.control_characters:
        faults.append(f"control characters on standard error: {result.control_characters}")
    if "nan" not in typed and "nan" in result.words:
        faults.append("nan in a message or a result")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Run lines, print a table and what was wrong; return 1 if anything was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="number of lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="K", help="run line K alone and show all it does")
    given = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    numbers = [given.only] if given.only is not None else range(given.count)
    codes: defaultdict[str, Counter[int | None]] = defaultdict(Counter)
    slowest: defaultdict[str, float] = defaultdict(float)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="harken-lines-") as folder, Sandbox(Path(folder)) as sandbox:
        generator = Generator(given.seed, sandbox.names)
        began = time.monotonic()
        for number in numbers:
            line = generator.line(number)
            result = sandbox.run(line.arguments, line.stdin, SLOWEST_S)
            command = line.command if line.command in COMMANDS else "other"
            codes[command][result.code] += 1
            slowest[command] = max(slowest[command], result.elapsed_s)
            if faults := faults_of(line, result):
                wrong += 1
                print(f"FAULT --seed {given.seed} --only {number}: {line}", file=sys.__stdout__)
                for fault in faults:
                    print(f"    {fault!r}", file=sys.__stdout__, flush=True)
            if given.only is not None:
                print(f"{line}\n{line.arguments!r}\nexit code {result.code}\n{result.out}{result.err}", end="")
        elapsed_s = time.monotonic() - began
    print_table(codes, slowest)
    total = sum(counter.total() for counter in codes.values())
    print(f"{total} command lines in {elapsed_s:.0f} s; {wrong} with a fault")
    return 1 if wrong else 0


def print_table(codes: dict[str, Counter[int | None]], slowest: dict[str, float]) -> None:
    """Print how often each command ended with which code."""
    columns = sorted({code for counter in codes.values() for code in counter if code is not None})
    hangs = any(None in counter for counter in codes.values())
    print(
        f"{'command':<12}"
        + "".join(f"{code:>7}" for code in columns)
        + ("  hangs" if hangs else "")
        + "  slowest"
    )
    for command, counter in sorted(codes.items()):
        cells = "".join(f"{counter[code]:>7}" for code in columns) + (f"{counter[None]:>7}" if hangs else "")
        print(f"{command[:12]:<12}{cells}  {slowest[command]:>5.1f} s")


if __name__ == "__main__":
    sys.exit(main())

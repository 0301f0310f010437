"""Nonsense command lines; ``python tests/attack/command_lines.py --count 10000`` tries ten thousand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_lines import SLOWEST_S, Generator, Line, faults_of
from command_runner import Result, Sandbox

LINES, SEED = 80, 12


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("lines")) as sandbox:
        yield sandbox


@pytest.mark.slow
def test_nonsense_ends_in_a_result_or_in_one_line(sandbox: Sandbox) -> None:
    generator = Generator(SEED, sandbox.names)
    faults = [
        f"python tests/attack/command_lines.py --seed {SEED} --only {number}: {line}: {found}"
        for number in range(LINES)
        if (
            found := faults_of(
                line := generator.line(number), sandbox.run(line.arguments, line.stdin, SLOWEST_S)
            )
        )
    ]
    assert not faults, "\n".join(faults)


def test_lines_are_reproducible(sandbox: Sandbox) -> None:
    one, other = (Generator(SEED, sandbox.names) for _ in range(2))
    assert [one.line(number) for number in range(50)] == [other.line(number) for number in range(50)]


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


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        ({"code": 70, "err": "harken: KeyError: 1\n"}, "exit code 70"),
        ({"code": 3, "err": "it went wrong\n"}, "ends with"),
        ({"code": 3, "err": "harken: \n"}, "empty"),
        ({"code": 2, "err": "Traceback (most recent call last)\nharken: x\n"}, "traceback"),
        ({"code": 3, "err": "harken: \x1b[2J: no such file\n"}, "control characters"),
        ({"code": 0, "out": "nan times real time\n"}, "nan"),
        ({"code": None}, "hangs"),
        ({"code": 0, "faults": ("good.wav was overwritten",)}, "overwritten"),
    ],
)
def test_judge_sees(result: dict[str, object], fault: str) -> None:
    given = {"out": "", "err": "", "elapsed_s": 0.1, "faults": (), **result}
    found = faults_of(Line(0, ("transcribe", "good.wav"), ""), Result(**given))  # type: ignore[arg-type]
    assert any(fault in text for text in found)


@pytest.mark.parametrize(
    ("count", "is_fault"),
    [("1", True), ("10", True), ("100", False), ("1_000", False), (str(10**30), False)],
)
def test_many_repetitions_are_no_hang(count: str, is_fault: bool) -> None:
    stopped = Result(code=None, out="", err="", elapsed_s=10.0, faults=())
    for repeat in (["--repeat", count], [f"--repeat={count}"]):
        assert bool(faults_of(Line(0, ("bench", "good.wav", *repeat), ""), stopped)) == is_fault


def test_changed_recording_is_noticed_and_put_back(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Path("good.wav")
    whole = recording.read_bytes()

    def spoil(arguments: list[str]) -> int:
        recording.write_bytes(b"results")
        Path(".harken-1.part").touch()
        return 0

    monkeypatch.setattr("command_runner.main", spoil)
    assert {*sandbox.run(["transcribe", "good.wav"], "", 1.0).faults} == {
        "good.wav was overwritten",
        "left over: a/b/c/.harken-1.part",
    }
    assert recording.read_bytes() == whole
    assert sandbox.run(["transcribe", "other.wav", "-o", "good.wav"], "", 1.0).faults == (
        "left over: a/b/c/.harken-1.part",
    )

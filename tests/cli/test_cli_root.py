"""The command as a whole: its subcommands, and the exit code and message of every error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import harken
from cli_runner import CliRunner
from harken import errors
from harken.cli import root
from harken.cli.exits import EPILOGUE, EXITS, Stop, exit_code


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    return CliRunner(capsys, monkeypatch)


def failing_command(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


# error, exit code, what standard error says
ERRORS = [
    (errors.AudioError("a.mp3: is empty"), 3, "harken: a.mp3: is empty\n"),
    (errors.AudioNotFound("a.mp3: no such file"), 3, "harken: a.mp3: no such file\n"),
    (errors.CheckpointError("m: damaged"), 4, "harken: m: damaged\n"),
    (errors.CheckpointNotFound("m: no such model"), 4, "harken: m: no such model\n"),
    (errors.OutputError("a.srt: cannot be written"), 5, "harken: a.srt: cannot be written\n"),
    (errors.BackendUnavailable("not there:\n  pip install it"), 6, "harken: not there: pip install it\n"),
    (errors.OptionError("seed", -1, "0 on"), 2, "harken: seed=-1: allowed is 0 on\n"),
    (click.UsageError("no such thing."), 2, "harken: no such thing\n"),
    (Stop(130, "interrupted"), 130, "harken: interrupted\n"),
]


@pytest.mark.parametrize(("error", "code", "message"), ERRORS, ids=lambda value: type(value).__name__)
def test_each_error_is_one_line_and_a_code(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr(root.LazyGroup, "get_command", lambda *_: failing_command(error))
    outcome = cli.run("anything")
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.removesuffix("; see 'harken anything --help'\n").strip() == message.strip()


def test_public_errors_have_distinct_codes() -> None:
    concrete = {errors.AudioError, errors.CheckpointError, errors.OptionError, errors.BackendUnavailable}
    codes = {exit_code(kind.__new__(kind)) for kind in (concrete | {errors.OutputError})}
    assert codes == {2, 3, 4, 5, 6}


def test_help_lists_every_exit_code(cli: CliRunner) -> None:
    words = EPILOGUE.removeprefix("\b").split()
    for page in (["--help"], ["transcribe", "--help"], ["doctor", "-h"]):
        outcome = cli.run(*page)
        assert outcome.code == 0
        assert outcome.out.split()[-len(words) :] == words
    assert [exit.code for exit in EXITS] == sorted({exit.code for exit in EXITS})


class TestUnexpectedErrors:
    def test_unexpected_error_is_one_line_with_a_hint(
        self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HARKEN_DEBUG", raising=False)
        monkeypatch.setattr(
            root.LazyGroup, "get_command", lambda *_: failing_command(RuntimeError("two\nlines"))
        )
        outcome = cli.run("anything")
        assert outcome.code == 70
        assert outcome.err == (
            "harken: RuntimeError: two lines: harken did not foresee this; "
            "HARKEN_DEBUG=1 in the environment shows the traceback\n"
        )

    def test_debug_raises_the_error(self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HARKEN_DEBUG", "1")
        monkeypatch.setattr(root.LazyGroup, "get_command", lambda *_: failing_command(RuntimeError("inside")))
        with pytest.raises(RuntimeError, match="inside"):
            cli.run("anything")


def test_without_a_command_all_are_listed(cli: CliRunner) -> None:
    outcome = cli.run()
    assert outcome.code == 0
    for command in root.COMMANDS:
        assert f"\n  {command} " in outcome.out


def test_version(cli: CliRunner) -> None:
    assert cli.run("--version").out == f"harken {harken.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "harken: No such command 'fly'; see 'harken --help'\n"),
        (["transcribe"], "harken: Missing argument 'FILE...'; see 'harken transcribe --help'\n"),
        (["models", "show"], "harken: Missing argument 'MODEL'; see 'harken models show --help'\n"),
    ],
)
def test_usage_error_points_to_the_help(cli: CliRunner, arguments: list[str], message: str) -> None:
    outcome = cli.run(*arguments)
    assert (outcome.code, outcome.err) == (2, message)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
class TestSignals:
    @pytest.mark.parametrize(
        ("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
    )
    def test_signal_stops_and_handlers_are_restored(
        self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch, number: int, word: str
    ) -> None:
        @click.command()
        def waiting() -> None:
            os.kill(os.getpid(), number)
            raise AssertionError("went on after the signal")

        before = signal.getsignal(number)
        monkeypatch.setattr(root.LazyGroup, "get_command", lambda *_: waiting)
        outcome = cli.run("anything")
        assert (outcome.code, outcome.err) == (128 + number, f"harken: {word}\n")
        assert signal.getsignal(number) is before

    def test_ignored_signal_stays_ignored(self, cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        @click.command()
        def waiting() -> None:
            os.kill(os.getpid(), signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            monkeypatch.setattr(root.LazyGroup, "get_command", lambda *_: waiting)
            assert cli.run("anything").code == 0
        finally:
            signal.signal(signal.SIGINT, before)


def test_help_imports_no_heavy_package(tmp_path: Path) -> None:
    code = (
        "import sys; from harken.cli import main; main(['transcribe', '--help']);"
        "heavy = {'av', 'onnx', 'onnxruntime', 'openvino', 'huggingface_hub', 'rich', 'torch'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")

"""The command as a whole: its subcommands, and the exit code and message of every error."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import click
import pytest

import harken
from harken import errors
from harken.cli import root
from harken.cli.exits import EPILOGUE, EXITS, Stop, describe_error
from harken.cli.signals import keeping_stop, waiting
from real_models import EXAMPLE

UNFORESEEN = "harken did not foresee this; HARKEN_DEBUG=1 in the environment shows the traceback"


@pytest.fixture
def run(cli, monkeypatch):
    """Return a function that runs a command, whatever its body does."""

    def run(body):
        monkeypatch.setattr(root.LazyGroup, "get_command", lambda *_: click.Command("command", callback=body))
        return cli.run("anything")

    return run


def failing(error):
    def body():
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.AudioError("a.mp3: is empty"), 3, "a.mp3: is empty"),
        (errors.CheckpointError("m: damaged"), 4, "m: damaged"),
        (errors.OutputError("a.srt: cannot be written"), 5, "a.srt: cannot be written"),
        (errors.BackendUnavailable("not there:\n  pip install it"), 6, "not there: pip install it"),
        (errors.OptionError("seed", -1, "0 on"), 2, "seed=-1: allowed is 0 on"),
        (click.UsageError("no such thing."), 2, "no such thing; see 'harken anything --help'"),
        (Stop(130, "interrupted"), 130, "interrupted"),
        (MemoryError(), 7, "not enough memory"),
        (RuntimeError("two\nlines"), 70, f"RuntimeError: two lines: {UNFORESEEN}"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_is_one_line_and_a_code(run, monkeypatch, error, code, message):
    monkeypatch.delenv("HARKEN_DEBUG", raising=False)
    outcome = run(failing(error))
    assert (outcome.code, outcome.out, outcome.err) == (code, "", f"harken: {message}\n")


def test_debug_raises_an_unforeseen_error(run, monkeypatch):
    monkeypatch.setenv("HARKEN_DEBUG", "1")
    with pytest.raises(RuntimeError, match="inside"):
        run(failing(RuntimeError("inside")))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no folder that a process is in")
def test_a_current_folder_that_was_removed_is_no_unforeseen_error(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path)
    outcome = cli.run("transcribe", "talk.wav", "--format", "srt")
    assert (outcome.code, outcome.err) == (
        2,
        "harken: the current folder was removed; allowed is one that exists\n",
    )


def test_notes_of_an_error_are_on_its_line():
    error = ZeroDivisionError("by chance")
    error.add_note("what was done is in talk.srt.partial")
    assert describe_error(error).endswith(f"{UNFORESEEN}; what was done is in talk.srt.partial")


def test_help_lists_every_exit_code_and_every_command(cli):
    words = EPILOGUE.removeprefix("\b").split()
    for page in (["--help"], ["transcribe", "--help"], ["doctor", "-h"]):
        outcome = cli.run(*page)
        assert outcome.code == 0
        assert outcome.out.split()[-len(words) :] == words
    assert [exit.code for exit in EXITS] == sorted({exit.code for exit in EXITS})
    page = cli.run("--help").out
    assert all(f"\n  {command} " in page for command in root.COMMANDS)


def test_without_a_command_an_example_is_transcribed_and_commands_are_named(cli):
    outcome = cli.run()
    assert (outcome.code, cli.loaded[0]["model"], cli.loaded[0]["download"]) == (0, "tiny.en", False)
    first, _, rest = outcome.out.partition("\n\n")
    text, _, commands = rest.partition("\n\n")
    assert "1961" in first
    assert text.startswith("[00:00.000 --> ")
    named = {line.split()[1] for line in commands.splitlines() if "  harken" in line}
    assert "transcribe" in named
    assert named <= {*root.COMMANDS, "--help"}


def test_version(cli):
    assert cli.run("--version").out == f"harken {harken.__version__}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_signal_stops_the_command_and_handlers_are_restored(run, number, word):
    def waiting():
        os.kill(os.getpid(), number)
        went_on.append(number)

    went_on = []
    before = signal.getsignal(number)
    outcome = run(waiting)
    assert (outcome.code, outcome.err, went_on) == (128 + number, f"harken: {word}\n", [])
    assert signal.getsignal(number) is before


def test_stop_that_a_package_swallows_is_raised_behind_the_block():
    with pytest.raises(Stop, match="terminated"), keeping_stop(), suppress(BaseException):
        signal.raise_signal(signal.SIGTERM)  # as while a package is imported that has a bare except


def test_first_signals_wait_for_a_call_that_takes_long():
    answer = waiting(2)
    assert [answer(signal.SIGINT) for _ in range(3)] == [True, True, False]


def test_help_imports_no_heavy_package(tmp_path):
    code = (
        "import sys; from harken.cli.root import main; main(['transcribe', '--help']);"
        "heavy = {'av', 'onnx', 'onnxruntime', 'openvino', 'huggingface_hub', 'tqdm', 'torch'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_EXTRAS = {
    "serve": ("uvicorn", "serve"),
    "mcp": ("mcp", "mcp --root ."),
    "mic": ("sounddevice", "listen --list-microphones"),
    "eval": ("jiwer", "eval m.jsonl"),
    "speakers": ("scipy", "eval m.jsonl --speakers --turns . --no-words"),
    "plot": ("matplotlib", "plot jfk.flac -o out.png"),
    "torch": ("torch", "distill tiny.en --data . --out x"),
    "ray": ("ray", "batch . out --ray 127.0.0.1:1"),
    "parquet": ("pyarrow", "batch . out --parquet"),
}
"""A package and a command that needs it, by the extra."""


def test_a_missing_package_is_named_with_the_extra_that_has_it(tmp_path):
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "m.jsonl").write_text('{"audio": "jfk.flac", "text": "And"}')
    (tmp_path / "jfk.rttm").write_text("SPEAKER jfk 1 0.0 4.0 <NA> <NA> ann <NA> <NA>")
    packages, commands = zip(*WITHOUT_EXTRAS.values(), strict=True)
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({packages}))\n"
        f"from harken.cli.root import main\nfor line in {commands}: assert main(line.split()) == 6, line"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    told = [line for line in done.stderr.splitlines() if line.startswith("harken: ")]
    for line, (extra, (package, _)) in zip(told, WITHOUT_EXTRAS.items(), strict=True):
        assert line.startswith(f"harken: {package}")
        assert line.endswith(f" needs: {errors.install_hint(extra)}")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out.png").exists()

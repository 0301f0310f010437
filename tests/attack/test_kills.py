"""A few kills at random points; ``python tests/attack/kills.py --count 1000`` does a thousand."""

from __future__ import annotations

import sys
from pathlib import Path

import kills
import pytest

pytestmark = pytest.mark.slow
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process in one way only")


def killed(folder: Path, *arguments: str) -> kills.Report:
    return kills.kill_all(kills.parse_arguments([*arguments, "--model", "random", "--seed", "7"]), folder)


def test_killed_batch_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    report = killed(tmp_path, "--what", "transcribe", "--recordings", "3", "--count", "4")
    assert not report.faults
    assert report.whole_runs


@posix
@pytest.mark.attack
def test_sound_of_a_killed_live_session_is_on_the_disk(tmp_path: Path) -> None:
    assert not killed(tmp_path, "--what", "listen", "--count", "4").faults


@pytest.mark.attack
def test_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert not killed(tmp_path, "--what", "finetune", "--count", "3").faults

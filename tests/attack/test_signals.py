"""A signal ends a command soon, with its exit code and one line; ``signals.py`` tries all and prints the times."""

from __future__ import annotations

import sys

import pytest
from signals import BY_NAME, NUMBERS, Stage

from real_models import CACHE, model_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals that a process could handle"),
]
QUICK = {
    ("transcribe starting", "SIGTERM"),
    ("transcribe loading", "SIGTERM"),
    ("transcribe working", "SIGINT"),
    ("transcribe working, 3 signals", "SIGINT"),
    ("transcribe writing", "SIGTERM"),
    ("transcribe waiting for input, silent pipe", "SIGTERM"),
}
ALL = [(name, number) for name in BY_NAME for number in NUMBERS]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    model_path("tiny.en")
    return Stage(tmp_path_factory.mktemp("signals"), CACHE)


@pytest.mark.parametrize(
    ("name", "number"),
    [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.attack]) for pair in ALL],
    ids=[f"{number} {name}" for name, number in ALL],
)
def test_signal_ends_the_command_soon_and_in_one_line(stage: Stage, name: str, number: str) -> None:
    case, signal_number = BY_NAME[name], NUMBERS[number]
    elapsed_s, ended = stage.stop(case, signal_number)
    try:
        assert not [*stage.faults(case, signal_number, elapsed_s, ended)]
    finally:
        stage.clean()


def test_quick_cases_exist() -> None:
    assert {*ALL} >= QUICK

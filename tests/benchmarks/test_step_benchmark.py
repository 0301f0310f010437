"""The benchmarks of decoder steps, busy cores and larger models: their arguments, bytes, rows and tables."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import busy
import larger
import steps
from harken.backends.native.library import unavailable_reason
from harken.text import Tokenizer
from layouts import TABLES
from random_checkpoint import PROMPT_LENGTH, added_tokens, draw_ending_weights
from roofline import native_step_bytes
from tables import cells
from tiny_models import DIMS, make_backend

OPTIONS = Namespace(bursts=1, burst_s=0.0, past=4)


def refusal(
    program: object, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return the last line that a program ends with, for wrong arguments."""
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    with pytest.raises(SystemExit):
        program.arguments()  # type: ignore[attr-defined]
    return capsys.readouterr().err.splitlines()[-1]


def test_models_may_be_given_together_or_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--model", "a", "b"], ["--model", "a", "--model", "b"]):
        monkeypatch.setattr(sys, "argv", ["steps.py", *arguments])
        assert steps.arguments().model == ["a", "b"]


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (steps, ["--model", "a", "--dims", "tiny"], "--dims takes the place of --model"),
        (steps, ["--tokens", "0"], "0: allowed is an integer from 1 on"),
        (busy, ["--busy", "1"], "--busy 1: allowed are 0 and numbers up to"),
        (busy, ["--busy", "0", "100000"], "--busy 0 100000: allowed are 0 and numbers up to"),
        (larger, ["--dims", "tiny", "--engines", "openai-whisper"], "--engines openai-whisper: allowed with"),
        (larger, ["--dims", "tiny", "--peer-models", "a=b"], "--peer-models: allowed is none with --dims"),
    ],
)  # fmt: skip
def test_wrong_arguments_get_one_line(
    program: object,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in refusal(program, arguments, monkeypatch, capsys)


def test_a_single_token_of_one_row_is_always_measured() -> None:
    cases = [(case.rows, case.tokens) for case in steps.make_cases(500, [5, 3], [8, 1])]
    assert cases == [(1, 1), (1, 3), (1, 5), (8, 1)]


def test_bytes_of_a_step_are_those_of_the_formula() -> None:
    state, layers, columns = DIMS.n_text_state, DIMS.n_text_layer, -(-DIMS.n_vocab // 16) * 16
    biases = 4 * (layers * 11 * state + columns)  # keys have none
    weights = (layers * 14 * state**2 + columns * state) * 34 // 32
    scales_of_keys = 4 * layers * DIMS.n_text_head * 32
    per_row = 4 * layers * state * 32 + 4 * layers * state * 5 + scales_of_keys
    assert native_step_bytes(DIMS, 3, 20, 5) == pytest.approx(weights + biases + 3 * per_row, abs=64 * 100)
    assert native_step_bytes(DIMS, 4, 20, 5) - native_step_bytes(DIMS, 3, 20, 5) == per_row


@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
def test_every_case_has_a_row_that_its_table_shows(tmp_path: Path) -> None:
    backends = {name: make_backend(f"{name}-int8", tmp_path) for name in (steps.NATIVE, steps.ONNX)}
    rows = [*steps.measure("tiny", backends, steps.make_cases(20, [1, 2], [2]), OPTIONS)]
    assert [(row["rows"], row["tokens"]) for row in rows] == [(1, 1), (1, 2), (2, 1)]
    assert rows[0]["native_over_one"] == rows[0]["onnx_over_one"] == 1.0
    assert all(len(cells(TABLES["steps"], row)) == len(TABLES["steps"].columns) for row in rows)


def test_slowdowns_are_taken_within_a_round() -> None:
    seconds = {("a", 0): [1.0, 2.0], ("a", 1): [2.0, 4.0], ("b", 0): [1.0, 1.0], ("b", 1): [3.0, 2.0]}
    rows = [*busy.rows(seconds, ["a", "b"], [0, 1])]
    assert [cells(TABLES["busy"], row) for row in rows] == [
        ["0", "a", "1.50", "1.00", "1.00"],
        ["0", "b", "1.00", "1.00", "1.00"],
        ["1", "a", "3.00", "2.00", "1.00"],
        ["1", "b", "2.50", "2.50 (2.00 to 3.00)", "1.25 (1.00 to 1.50)"],
    ]


def test_busy_processes_end_with_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str]) -> None:
            super().__init__(command)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with busy.busy_processes(1):
        assert started[0].poll() is None
    assert started[0].returncode is not None


def test_random_weights_end_a_text_at_one_position() -> None:
    dims = replace(DIMS, n_text_state=128, n_text_head=4)
    tokenizer, n_tokens = Tokenizer.bytes_only(), 7
    weights = draw_ending_weights(dims, tokenizer, n_tokens)
    embedding = weights["decoder.token_embedding.weight"].astype(np.float32)
    scores = weights["decoder.positional_embedding"].astype(np.float32) @ embedding.T
    best = scores.argmax(axis=1)
    last = PROMPT_LENGTH - 1 + n_tokens  # the token that this position reads is the last one
    assert (best[:last] < tokenizer.eot).all()
    assert (best[last:] == tokenizer.eot).all()


def test_a_tokenizer_lists_every_token_that_is_no_text() -> None:
    tokenizer = Tokenizer.bytes_only()
    listed = added_tokens(tokenizer)
    assert [entry["id"] for entry in listed] == [*range(tokenizer.eot, tokenizer.n_vocab)]
    assert listed[tokenizer.timestamp_begin + 50 - tokenizer.eot]["content"] == "<|1.00|>"

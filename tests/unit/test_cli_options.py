"""The options derived from `TranscribeOptions`, `Layout` and `harken.load`, and their values."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import click
import pytest

from harken.api import load
from harken.cli.options import (
    Command,
    decoding_options,
    layout_from,
    layout_options,
    load_model,
    model_options,
    transcribe_options_from,
)
from harken.formats import Layout
from harken.transcribe import TranscribeOptions


def parse(*arguments: str) -> dict[str, Any]:
    """Return the parameters of a command with all options."""
    params: dict[str, Any] = {}

    @click.command(cls=Command)
    @layout_options
    @model_options
    @decoding_options
    def command(**values: Any) -> None:
        params.update(values)

    command.main(list(arguments), standalone_mode=False)
    return params


def test_defaults_equal_those_of_the_library() -> None:
    values = parse()
    assert transcribe_options_from(values) == TranscribeOptions()
    assert layout_from(values) == Layout()
    parameters = inspect.signature(load).parameters
    shared = {name: parameter.default for name, parameter in parameters.items() if name != "cache"}
    assert {name: values[name] for name in shared} == shared


def test_every_field_has_an_option_with_help() -> None:
    @click.command(cls=Command)
    @layout_options
    @decoding_options
    def command() -> None: ...

    page = " ".join(command.get_help(click.Context(command, max_content_width=200)).split())
    for field in (*fields(Layout), *fields(TranscribeOptions)):
        assert f"--{field.name.replace('_', '-')} " in page
        assert field.metadata["help"] in page


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--language German", {"language": "German"}),
        (
            "--beam-size 5 --patience 2 --length-penalty 0.6",
            {"beam_size": 5, "patience": 2.0, "length_penalty": 0.6},
        ),
        ("--length-penalty none", {"length_penalty": None}),
        ("--compression-ratio-threshold None", {"compression_ratio_threshold": None}),
        ("--logprob-threshold -0.5", {"logprob_threshold": -0.5}),
        ("--temperatures 0", {"temperatures": (0.0,)}),
        ("--temperatures 0,.4,1", {"temperatures": (0.0, 0.4, 1.0)}),
        ("--temperatures 0 --temperatures 0.4,1", {"temperatures": (0.0, 0.4, 1.0)}),
        ("--clip-timestamps 1.5,3,10", {"clip_timestamps": (1.5, 3.0, 10.0)}),
        ("--suppress-tokens -1,50", {"suppress_tokens": (-1, 50)}),
        ("--suppress-tokens=", {"suppress_tokens": ()}),
        ("--no-timestamps --no-suppress-blank", {"timestamps": False, "suppress_blank": False}),
        ("--condition-on-previous-text", {"condition_on_previous_text": True}),
        ("--initial-prompt none", {"initial_prompt": "none"}),
        ("--seed 7", {"seed": 7}),
        ("--languages de,en --multilingual", {"languages": ("de", "en"), "multilingual": True}),
        ("--hotwords Ada,Babbage --hotwords Turing", {"hotwords": ("Ada", "Babbage", "Turing")}),
        ("--no-vad --hallucination-threshold none", {"vad": False, "hallucination_threshold": None}),
        ("--suppress-regex ^um$ --batch-size 8", {"suppress_regex": "^um$", "batch_size": 8}),
    ],
)
def test_arguments_become_options(arguments: str, expected: dict[str, Any]) -> None:
    assert transcribe_options_from(parse(*arguments.split())) == TranscribeOptions(**expected)


def test_arguments_become_a_layout() -> None:
    chosen = parse("--max-line-width", "42", "--max-line-count=2", "--max-words-per-line", "none", "--karaoke")
    assert layout_from(chosen) == Layout(max_line_width=42, max_line_count=2, karaoke=True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--beam-size five", "'five' is not a valid integer"),
        ("--temperatures 0,warm", "'warm' is not a number"),
        ("--length-penalty some", "'some' is not a number"),
        ("--suppress-tokens 1.5", "'1.5' is not an integer"),
        ("--precision fp8", "'fp8' is not one of 'auto', 'fp32', 'bf16', 'int8', 'fp16'"),
        ("--backend cuda", "'cuda' is not one of 'onnx', 'torch', 'numpy'"),
    ],
)
def test_invalid_values_are_refused(arguments: str, reason: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        parse(*arguments.split())
    assert reason in refused.value.format_message()
    assert arguments.split()[0] in refused.value.format_message()


def test_model_options_are_passed_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[str, Any] = {}
    monkeypatch.setattr("harken.cli.options.load", lambda **arguments: loaded.update(arguments))
    load_model(
        parse(
            "-msmall", "--assistant=tiny", "--precision=fp32", "--threads=3", "--revision=main", "--no-download"
        )
    )
    assert loaded == {
        "model": "small",
        "assistant": "tiny",
        "precision": "fp32",
        "threads": 3,
        "backend": "onnx",
        "device": "auto",
        "revision": "main",
        "download": False,
    }


def test_help_groups_options_under_headings() -> None:
    @click.command(cls=Command)
    @model_options
    @decoding_options
    def command() -> None: ...

    page = command.get_help(click.Context(command))
    marks = [
        *("\nModel:\n", "--model", "\nLanguage:\n", "--multilingual", "\nDecoding:\n", "--beam-size"),
        *("\nPrompting:\n", "--hotwords", "\nWords:\n", "--word-timestamps", "\nSpeech:\n", "--vad-threshold"),
        *("\nOther:\n", "--help"),
    ]
    assert sorted(marks, key=page.index) == marks

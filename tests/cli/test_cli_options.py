"""The options derived from `TranscribeOptions`, `Layout` and `harken.load`, and their values."""

from __future__ import annotations

import inspect
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from cli_runner import CliRunner
from harken.api import load
from harken.cli.options import (
    Command,
    decoding_options,
    layout_options,
    load_model,
    model_options,
    option_error_line,
)
from harken.errors import OptionError
from harken.formats import Layout
from harken.option_types import options_from
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
    assert options_from(TranscribeOptions, values) == TranscribeOptions()
    assert options_from(Layout, values) == Layout()
    parameters = inspect.signature(load).parameters
    shared = {name: parameter.default for name, parameter in parameters.items() if name != "cache"}
    assert {name: values[name] for name in shared} == shared


def test_every_field_has_an_option_with_help() -> None:
    @click.command(cls=Command)
    @layout_options
    @decoding_options
    def command() -> None: ...

    page = " ".join(command.get_help(click.Context(command, max_content_width=200)).split())
    of_layout = [field for field in fields(Layout) if field.name != "speakers"]  # an option of diarization
    for field in (*of_layout, *fields(TranscribeOptions)):
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
    assert options_from(TranscribeOptions, parse(*arguments.split())) == TranscribeOptions(**expected)


def test_arguments_become_a_layout() -> None:
    chosen = parse("--max-line-width", "42", "--max-line-count=2", "--max-words-per-line", "none", "--karaoke")
    assert options_from(Layout, chosen) == Layout(max_line_width=42, max_line_count=2, karaoke=True)


def test_model_options_are_passed_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[str, Any] = {}
    monkeypatch.setattr("harken.cli.options.load", lambda **arguments: loaded.update(arguments))
    load_model(
        parse(
            "-msmall",
            "--assistant=tiny",
            "--adapter=live",
            "--precision=fp32",
            "--threads=3",
            "--revision=main",
            "--no-download",
        )
    )
    assert loaded == {
        "model": "small",
        "assistant": "tiny",
        "adapter": "live",
        "attention": "full",
        "lsh_rounds": 3,
        "lsh_bucket_size": 64,
        "precision": "fp32",
        "threads": 3,
        "backend": "auto",
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


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OptionError("beam_size", 99, "an integer from 1 to 64"),
            "--beam-size 99: allowed is an integer from 1 to 64",
        ),
        (OptionError("language", "a\x1b[31m", "en"), "--language 'a\\x1b[31m': allowed is en"),
        (OptionError("languages", ("en", "xx"), "en"), "--languages 'en,xx': allowed is en"),
        (OptionError("temperatures", (0.0, 99.0), "0 to 10"), "--temperatures 0.0,99.0: allowed is 0 to 10"),
        (OptionError("vad", False, "True"), "--no-vad: allowed is True"),
        (OptionError("prefix", "x" * 999, "less"), f"--prefix '{'x' * 27}...{'x' * 27}': allowed is less"),
        (OptionError("patience", 1.0, "at most beam_size"), "--patience 1.0: allowed is at most --beam-size"),
        (OptionError("sample_rate", 1, "16000"), "sample_rate=1: allowed is 16000"),
    ],
)
def test_error_of_an_option_shows_it_as_it_is_typed(error: OptionError, line: str) -> None:
    @click.command(cls=Command)
    @decoding_options
    def command(**values: Any) -> None:
        raise error

    assert option_error_line(command, error) == line
    with pytest.raises(click.UsageError) as refused:
        command.main([], standalone_mode=False)
    assert refused.value.message == line


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    return CliRunner(capsys, monkeypatch)


def test_unreadable_file_does_not_refuse_the_command_line(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.wav").touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert cli.run("transcribe", "secret.wav", "none.wav").code == 1

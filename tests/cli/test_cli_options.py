"""The options derived from `TranscribeOptions`, `Layout` and `harken.load`, and their values."""

import inspect
import os
from pathlib import Path

import click
import pytest

from harken.api import load
from harken.cli.model_options import model_options
from harken.cli.options import Command, decoding_options, layout_options, option_error_line
from harken.errors import OptionError
from harken.formats import Layout
from harken.option_types import options_from
from harken.transcribe import TranscribeOptions


@click.command(cls=Command)
@layout_options
@model_options
@decoding_options
def command(**values):
    return values


def parse(line):
    return command.main(line.split(), standalone_mode=False)


def test_defaults_equal_those_of_the_library():
    values = parse("")
    assert options_from(TranscribeOptions, values) == TranscribeOptions()
    assert options_from(Layout, values) == Layout()
    parameters = inspect.signature(load).parameters
    shared = {name: parameter.default for name, parameter in parameters.items() if name != "cache"}
    assert shared.items() <= values.items()


def test_help_lists_options_under_their_headings():
    page = command.get_help(click.Context(command, max_content_width=200))
    option = page.index("  --beam-size")
    heading = [line for line in page[:option].splitlines() if line and not line.startswith("  ")][-1]
    assert heading == "Decoding:"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--language German", {"language": "German"}),
        ("--beam-size 5 --patience 2", {"beam_size": 5, "patience": 2.0}),
        ("--length-penalty none", {"length_penalty": None}),
        ("--compression-ratio-threshold None", {"compression_ratio_threshold": None}),
        ("--logprob-threshold -0.5", {"logprob_threshold": -0.5}),
        ("--temperatures 0", {"temperatures": (0.0,)}),
        ("--temperatures 0,.4,1", {"temperatures": (0.0, 0.4, 1.0)}),
        ("--temperatures 0 --temperatures 0.4,1", {"temperatures": (0.0, 0.4, 1.0)}),
        ("--suppress-tokens -1,50", {"suppress_tokens": (-1, 50)}),
        ("--suppress-tokens=", {"suppress_tokens": ()}),
        ("--no-timestamps --no-suppress-blank", {"timestamps": False, "suppress_blank": False}),
        ("--condition-on-previous-text", {"condition_on_previous_text": True}),
        ("--initial-prompt none", {"initial_prompt": "none"}),
        ("--hotwords Ada,Babbage --hotwords Turing", {"hotwords": ("Ada", "Babbage", "Turing")}),
        ("--suppress-regex ^um$ --batch-size 8", {"suppress_regex": "^um$", "batch_size": 8}),
    ],
)
def test_arguments_become_options(line, expected):
    assert options_from(TranscribeOptions, parse(line)) == TranscribeOptions(**expected)


def test_arguments_become_a_layout():
    chosen = parse("--max-line-width 42 --max-line-count=2 --max-words-per-line none --karaoke")
    assert options_from(Layout, chosen) == Layout(max_line_width=42, max_line_count=2, karaoke=True)


def test_model_options_are_passed_to_load(cli, talk):
    given = "-msmall --assistant=tiny --adapter=live --precision=fp32 --threads=3 --revision=main --no-download"
    cli.run("transcribe", talk, *given.split())
    chosen = {"model": "small", "assistant": "tiny", "adapter": "live", "precision": "fp32", "threads": 3}
    chosen |= {"attention": "full", "lsh_rounds": 3, "lsh_bucket_size": 64}
    assert cli.loaded == [chosen | {"backend": "auto", "device": "auto", "revision": "main", "download": False}]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OptionError("beam_size", 99, "an integer"), "--beam-size 99: allowed is an integer"),
        (OptionError("language", "a\x1b[31m", "en"), "--language 'a\\x1b[31m': allowed is en"),
        (OptionError("languages", ("en", "xx"), "en"), "--languages 'en,xx': allowed is en"),
        (OptionError("temperatures", (0.0, 99.0), "0 to 10"), "--temperatures 0.0,99.0: allowed is 0 to 10"),
        (OptionError("vad", False, "True"), "--no-vad: allowed is True"),
        (OptionError("prefix", "x" * 999, "less"), f"--prefix '{'x' * 27}...{'x' * 27}': allowed is less"),
        (OptionError("patience", 1.0, "at most beam_size"), "--patience 1.0: allowed is at most --beam-size"),
        (OptionError("sample_rate", 1, "16000"), "sample_rate=1: allowed is 16000"),
    ],
)
def test_error_of_an_option_shows_it_as_it_is_typed(cli, talk, error, line):
    def fail(**given):
        raise error

    assert option_error_line(command, error) == line
    cli.loaders["load"] = fail
    outcome = cli.run("transcribe", talk)
    assert (outcome.code, outcome.err) == (2, f"harken: {line}\n")


def test_unreadable_file_does_not_refuse_the_command_line(cli, monkeypatch):
    Path("secret.wav").touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert cli.run("transcribe", "secret.wav", "none.wav").code == 1

"""``harken decode``: what the decoder does, window by window or token by token."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.inputs import recording_duration_s
from harken.cli.options import (
    Command,
    decoding_options,
    load_model,
    model_options,
    single_option,
    transcribe_options_from,
)
from harken.cli.screen import write_stdout
from harken.cli.trace import DecodingTracer, TraceEvent, WindowDecoded
from harken.cli.views import trace_event_json, trace_table, trace_window_summary
from harken.errors import OptionError


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("file")
@single_option(
    "--trace", section="Output", is_flag=True, help="Show every token: id, kind, text, probability and time."
)
@single_option(
    "--json", "as_json", section="Output", is_flag=True, help="Show the same as JSON, one object a line."
)
@model_options
@decoding_options
def command(file: str, trace: bool, as_json: bool, **params: Any) -> None:
    """Show how a recording is decoded.

    FILE is a recording of any kind, or - for standard input. For each window of 30 s you see its tokens, their
    text, and what was tried and rejected. With --trace you see every step as it happens: the prompt, each token
    with its kind (sot, language, task, control, timestamp, text, eot), and the sentences as they close.

    Times within a window run on from its beginning. A window of several stretches of speech leaves out the silence
    between them, which its times therefore do not count; --no-vad leaves nothing out.
    """
    options = transcribe_options_from(params)
    if options.batch_size > 1:
        raise OptionError("batch_size", options.batch_size, "1, as windows are shown one after another")
    recording_duration_s(file)
    recognizer = load_model(params)
    format_event = trace_event_json if as_json else trace_table if trace else trace_window_summary

    def show(event: TraceEvent) -> None:
        if trace or isinstance(event, WindowDecoded):
            write_stdout(format_event(event))

    for _ in recognizer.transcribe(
        file, options, **DecodingTracer(recognizer.tokenizer, options, show).callbacks()
    ):
        pass

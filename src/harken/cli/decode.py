"""``harken decode``: what the decoder does, window by window or token by token."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.inputs import length_s
from harken.cli.options import Command, chosen_options, decoding_options, flag, load_model, model_options
from harken.cli.screen import say
from harken.cli.trace import Event, Trace, WindowDecided
from harken.cli.views import compact, json_lines, table
from harken.errors import OptionError


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("file")
@flag("--trace", section="Output", is_flag=True, help="Show every token: id, kind, text, probability and time.")
@flag("--json", "as_json", section="Output", is_flag=True, help="Show the same as JSON, one object a line.")
@model_options
@decoding_options
def command(file: str, trace: bool, as_json: bool, **given: Any) -> None:
    """Show how a recording is decoded.

    FILE is a recording of any kind, or - for standard input. For each window of 30 s you see its tokens, their
    text, and what was tried and rejected. With --trace you see every step as it happens: the prompt, each token
    with its kind (sot, language, task, control, timestamp, text, eot), and the sentences as they close.

    Times within a window run on from its beginning. A window of several stretches of speech leaves out the silence
    between them, which its times therefore do not count; --no-vad leaves nothing out.
    """
    options = chosen_options(given)
    if options.batch_size > 1:
        raise OptionError("batch_size", options.batch_size, "1, as windows are shown one after another")
    length_s(file)
    recognizer = load_model(given)
    view = json_lines if as_json else table if trace else compact

    def show(event: Event) -> None:
        if trace or isinstance(event, WindowDecided):
            say(view(event))

    for _ in recognizer.transcribe(file, options, **Trace(recognizer.tokenizer, options, show).hooks()):
        pass

"""``harken plot``: draws how the model transcribed an excerpt of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from harken.cli.inputs import STDIN, recording_duration_s, refuse_overwriting
from harken.cli.model_options import chosen_files, load_model, model_options
from harken.cli.options import Command, FilePath, NumberRange, dataclass_options, single_option
from harken.cli.terminal import write_stderr
from harken.files import open_atomic
from harken.option_types import options_from
from harken.plot import PlotData, collect_plot_data, html_page, read_excerpt
from harken.transcribe import TranscribeOptions

picture_option = partial(single_option, section="Picture")


@click.command(cls=Command)
@click.argument("file", type=FilePath())
@picture_option(
    *("-o", "--output"),
    metavar="FILE",
    type=FilePath(path_type=Path, dir_okay=False),
    help="File to write: a name that ends in .html, or in .png, which takes pip install '.[plot]'. "
    "By default FILE.plot.html beside the recording.",
)
@picture_option("--start", type=NumberRange(0), default=0.0, metavar="SECONDS", help="Start of the excerpt.")
@picture_option(
    "--duration",
    type=NumberRange(0.1, 600),
    default=30.0,
    metavar="SECONDS",
    help="Duration of the excerpt.",
)
@model_options
@dataclass_options(TranscribeOptions, exclude=("vad", "word_timestamps", "channels", "replace"))
def command(file: str, output: Path | None, start: float, duration: float, **params: Any) -> None:
    """Draw how a recording is transcribed.

    FILE is a recording of any kind, or - for standard input. The picture shows, all on one axis of time: the
    spectrogram, the probability of speech and the regions that voice activity detection finds, the words, for each
    token the cross-attention with the path of dynamic time warping through it, the probabilities of the tokens, and
    the attempts at each window.

    The excerpt is decoded as a recording of its own, silence included.
    """
    options = options_from(TranscribeOptions, params)
    if options.clip_timestamps:
        raise click.UsageError("choose the excerpt with --start and --duration, not with --clip-timestamps")
    recording_duration_s(file)
    output = output or (Path("stdin.plot.html") if file == STDIN else Path(file).with_suffix(".plot.html"))
    draw = _make_renderer(output)
    refuse_overwriting([output], [file, *chosen_files(params)])
    with open_atomic(output) as write:
        samples = read_excerpt(file, start, duration)
        recognizer = load_model(params)
        name = "standard input" if file == STDIN else Path(file).name
        title = f"{name}, {recognizer.model}, {recognizer.backend.capabilities.precision}"
        for chunk in draw(collect_plot_data(recognizer, samples, options, title=title, start_s=start)):
            write(chunk)
    write_stderr(str(output))


def _make_renderer(output: Path) -> Callable[[PlotData], Iterable[str | bytes]]:
    """Return the renderer for a file name; a missing package is reported before the work."""
    if output.suffix.lower() == ".html":
        return html_page
    if output.suffix.lower() == ".png":
        from harken.plot.figure import render_png

        return lambda picture: [render_png(picture)]
    raise click.BadParameter(f"{str(output)!r} does not end in .html or .png", param_hint="'--output'")

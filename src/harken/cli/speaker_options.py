"""Options of the commands that tell speakers apart, and the loading of what they choose."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from harken.api import load_diarizer
from harken.cli.effects import without_flag
from harken.cli.options import FilePath, Text, add_options, chosen_loader, single_option
from harken.cli.signals import keeping_stop
from harken.cli.terminal import Screen
from harken.errors import OptionError
from harken.speakers.diarizer import Diarizer
from harken.speakers.live import DEFAULT_DELAY_S, MAX_DELAY_S
from harken.speakers.voices import read_voices, write_voices

speaker_option = partial(single_option, section="Speakers")
dependent_option = partial(speaker_option, no_effect=without_flag("speakers"))

speaker_model_option = partial(
    speaker_option,
    "--speaker-model",
    type=FilePath(),
    metavar="DIR",
    help="Folder with segmentation-3.0.onnx and campplus_cn_en_common.pt; by default they are downloaded once.",
)


max_speakers_option = partial(dependent_option, "--max-speakers", type=click.INT, help="Most speakers.")
voice_options = (
    dependent_option(
        "--speaker-sample",
        "speaker_samples",
        type=Text(empty=False),
        multiple=True,
        metavar="NAME=FILE",
        help="Some seconds of the speech of somebody who may be in the recording; may be given repeatedly.",
    ),
    dependent_option(
        "--voices",
        type=FilePath(),
        metavar="FILE",
        help="File of known voices, without sound; those of --speaker-sample are added to it.",
    ),
    speaker_model_option(no_effect=without_flag("speakers")),
)


def speaker_options(command: Any) -> Any:
    """Add the options of diarization of whole recordings."""
    decorators = (
        speaker_option(
            "--speakers",
            is_flag=True,
            help="Tell speakers apart, and write who said each word. Then the transcript comes at the end.",
        ),
        dependent_option("--num-speakers", type=click.INT, help="Number of speakers, if it is known."),
        dependent_option("--min-speakers", type=click.INT, help="Fewest speakers."),
        max_speakers_option(),
        *voice_options,
    )
    return add_options(decorators, command)


def live_speaker_options(command: Any) -> Any:
    """Add the options of diarization of live streams."""
    decorators = (
        speaker_option("--speakers", is_flag=True, help="Tell speakers apart, and show who speaks."),
        dependent_option(
            "--speaker-delay",
            type=click.FLOAT,
            default=DEFAULT_DELAY_S,
            metavar="SECONDS",
            help=f"Time after which the speakers of a word do not change any more, from 1 to {MAX_DELAY_S:.0f}.",
        ),
        max_speakers_option(),
        *voice_options,
    )
    return add_options(decorators, command)


def load_diarizer_with_status(screen: Screen, params: Mapping[str, Any]) -> Diarizer | None:
    """Load what tells speakers apart, with a status line if the screen shows progress; None without --speakers."""
    if not params["speakers"]:
        return None
    screen.show_status("loading the models of speakers ...")
    try:
        with keeping_stop():
            diarizer = chosen_loader("load_diarizer", load_diarizer)(
                params["speaker_model"],
                num_speakers=params.get("num_speakers"),
                min_speakers=params.get("min_speakers"),
                max_speakers=params["max_speakers"],
                download=params["download"],
            )
            return _with_voices(diarizer, params)
    finally:
        screen.show_status("")


def _with_voices(diarizer: Diarizer, params: Mapping[str, Any]) -> Diarizer:
    """Return a diarizer that knows the voices of the file and of the samples, which are added to the file."""
    samples, path = _samples(params["speaker_samples"]), params["voices"]
    if path and (os.path.exists(path) or not samples):
        diarizer = diarizer.with_voices(read_voices(path))
    if samples:
        try:
            diarizer = diarizer.with_voices(samples)
        except OptionError as error:
            raise click.UsageError(f"--speaker-sample {error.value}: allowed is {error.allowed}") from error
        if path:
            write_voices(path, diarizer.voices)
    return diarizer


def _samples(given: Sequence[str]) -> dict[str, str]:
    """Return the files of samples by name.

    Raises
    ------
    click.UsageError
        If one has no name or no file, or a name is given twice.
    """
    samples: dict[str, str] = {}
    for text in given:
        name, _, file = text.partition("=")
        if not (name and file) or name in samples:
            raise click.UsageError(f"--speaker-sample {text}: allowed is NAME=FILE, each name once")
        samples[name] = file
    return samples

"""Options of the commands that tell speakers apart, and the loading of what they choose."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from harken.api import load_diarizer
from harken.cli.effects import without_flag
from harken.cli.exits import keeping_stop
from harken.cli.options import add_options, single_option
from harken.cli.screen import Screen
from harken.cli.values import FilePath
from harken.speakers.diarizer import Diarizer
from harken.speakers.live import DEFAULT_DELAY_S, MAX_DELAY_S

speaker_option = partial(single_option, section="Speakers")
dependent_option = partial(speaker_option, no_effect=without_flag("speakers"))

speaker_model_option = partial(
    speaker_option,
    "--speaker-model",
    type=FilePath(),
    metavar="DIR",
    help="Folder with segmentation-3.0.onnx and campplus_cn_en_common.pt; by default they are downloaded once.",
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
        dependent_option("--max-speakers", type=click.INT, help="Most speakers."),
        speaker_model_option(no_effect=without_flag("speakers")),
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
        dependent_option("--max-speakers", type=click.INT, help="Most speakers."),
        speaker_model_option(no_effect=without_flag("speakers")),
    )
    return add_options(decorators, command)


def load_diarizer_with_status(screen: Screen, params: Mapping[str, Any]) -> Diarizer | None:
    """Load what tells speakers apart, with a status line if the screen shows progress; None without --speakers."""
    if not params["speakers"]:
        return None
    screen.show_status("loading the models of speakers ...")
    try:
        with keeping_stop():
            return load_diarizer(
                params["speaker_model"],
                num_speakers=params.get("num_speakers"),
                min_speakers=params.get("min_speakers"),
                max_speakers=params["max_speakers"],
                download=params["download"],
            )
    finally:
        screen.show_status("")

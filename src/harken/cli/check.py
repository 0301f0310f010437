"""``harken check``: checks subtitles against the rules of a style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from harken.cli.exits import SOME_FAILED
from harken.cli.options import Command, FilePath, dataclass_options
from harken.cli.terminal import format_time, pluralize, write_stderr, write_stdout
from harken.errors import ManifestError
from harken.formats import Layout
from harken.formats.cue_check import check_cues, read_cues
from harken.option_types import options_from


@click.command("check", cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FilePath())
@dataclass_options(Layout, exclude=("highlight_words", "karaoke", "embed_audio", "speakers"))
def command(files: Sequence[str], **params: Any) -> int:
    """Check subtitles against the rules of a style.

    FILE has subtitles of any program, in the format srt or vtt. Every rule that a cue breaks is a line, and the exit
    code is then 1. A cue may also not be a word that is torn out of its sentence, nor have a line of one word.
    """
    layout = options_from(Layout, params)
    failed = False
    for file in files:
        try:
            cues = read_cues(file)
        except ManifestError as error:
            if len(files) == 1:
                raise
            write_stderr(f"harken: {error}")
            failed = True
            continue
        broken = [*check_cues(cues, layout)]
        for each in broken:
            write_stdout(f"{file}: cue {each.number} at {format_time(cues[each.number - 1].start_s)}: {each}\n")
        n_breaking = len({each.number for each in broken})
        write_stdout(f"{file}: {n_breaking} of {pluralize(len(cues), 'cue')} with a broken rule\n")
        failed |= bool(broken)
    return SOME_FAILED if failed else 0

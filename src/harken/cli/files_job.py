"""Recordings as the jobs of a command: where their transcripts go, the model that is loaded once, and what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harken.api import Recognizer
from harken.cli.file_transcriber import FileTranscriber
from harken.cli.inputs import output_paths, refuse_overwriting
from harken.cli.model_options import load_diarizer_with_status, load_model_with_status, model_files
from harken.cli.terminal import Screen, pluralize
from harken.cli.transcript_files import TranscriptFiles, all_exist
from harken.files import make_folder
from harken.formats import Layout, TranscriptFormat
from harken.speakers.diarizer import Diarizer
from harken.transcribe import TranscribeOptions

MOST_NAMES = 10
"""Recordings that the last line names."""


@dataclass(kw_only=True)
class FilesJob:
    """What is done with recordings: how they are transcribed, and where the transcripts go.

    Parameters
    ----------
    screen : Screen
    params : mapping
        Values of `model_options` and `speaker_options`.
    options : TranscribeOptions
    layout : Layout
    format_names : sequence of str
        Formats of the files; none are written without any.
    folder : Path or None
        Folder of the files, which is made; None for that of each recording.
    stdout_writer : callable
        Returns the writer of a recording's transcript on standard output, or None if it is not shown.
    draft : str or None
        Text that a single recording is expected to have.
    skip_existing : bool
        Skip recordings whose files all exist.
    keep_journals, verbose, quiet : bool
        As for `TranscriptFiles` and `FileTranscriber`.
    """

    screen: Screen
    params: Mapping[str, Any]
    options: TranscribeOptions
    layout: Layout
    format_names: Sequence[str]
    folder: Path | None
    stdout_writer: Callable[[str], TranscriptFormat | None]
    draft: str | None = None
    skip_existing: bool = False
    keep_journals: bool = False
    verbose: bool = False
    quiet: bool = False

    @cached_property
    def recognizer(self) -> Recognizer:
        """The model, which is loaded once."""
        return load_model_with_status(self.screen, self.params)

    @cached_property
    def diarizer(self) -> Diarizer | None:
        """What tells speakers apart, loaded once; None if nothing is to."""
        return load_diarizer_with_status(self.screen, self.params)

    def run(self, sources: Sequence[str], *, is_single: bool) -> int:
        """Transcribe recordings, say what was done, and return the exit code; the error of a single one is raised."""
        files = self.files(sources)
        refuse_overwriting(
            [path for paths in files.paths.values() for path in paths.values()],
            [
                *sources,
                *model_files(*(self.params.get(name) for name in ("model", "assistant", "adapter"))),
                *(file for name in ("voices", "draft") if (file := self.params.get(name))),
            ],
        )
        if self.folder:
            make_folder(self.folder)
        remaining = [
            source for source in sources if not (self.skip_existing and all_exist(files.paths[source]))
        ]
        transcriber = FileTranscriber(
            screen=self.screen,
            load=lambda: self.recognizer,
            load_diarizer=lambda: self.diarizer,
            options=self.options,
            files=files,
            stdout_writer=self.stdout_writer,
            verbose=self.verbose,
            quiet=self.quiet,
            is_single=is_single,
            draft=self.draft,
        )
        code = transcriber.run(remaining)
        n_skipped = len(sources) - len(remaining)
        if self.format_names and (n_skipped or not is_single) and not self.quiet:
            self.screen.write_stderr(_summary(transcriber, n_skipped))
        return code

    def files(self, sources: Sequence[str], claimed: dict[str, str] | None = None) -> TranscriptFiles:
        """Return the files of recordings; `claimed` is as for `output_paths`."""
        paths = output_paths(sources, self.format_names, self.folder, claimed)
        return TranscriptFiles(paths=paths, layout=self.layout, keep_journals=self.keep_journals)


def _summary(transcriber: FileTranscriber, n_skipped: int) -> str:
    """Return the line that says what was done, skipped and refused, and what failed."""
    parts = [f"{pluralize(len(transcriber.done), 'recording')} done"]
    if n_skipped:
        parts.append(f"{n_skipped} skipped, as the transcripts exist")
    for outcome, names in {"refused": transcriber.refused, "failed": transcriber.failed}.items():
        if names:
            others = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            parts.append(f"{len(names)} {outcome}: {', '.join(names[:MOST_NAMES])}{others}")
    return f"harken: {'; '.join(parts)}"

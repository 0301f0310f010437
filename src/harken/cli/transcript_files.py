"""The transcripts of a recording as files: whole or absent, with what is kept of one that was cut short or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from errno import EACCES, EIO, EMFILE, ENFILE, ENOMEM, EPERM, ETIMEDOUT
from functools import cached_property
from pathlib import Path

from harken.cli.inputs import recording_reference
from harken.errors import AudioError, AudioNotFound, HarkenError, OutputError
from harken.files import open_atomic, write_atomic
from harken.formats import Layout, render
from harken.results import Transcript
from harken.transcribe.journal import recording_identity
from harken.version import __version__

_PASSING_ERRORS = {EACCES, EPERM, EIO, EMFILE, ENFILE, ENOMEM, ETIMEDOUT}
_PARTIAL = ".partial"  # not .part, which is a file that grows now
_JOURNAL, _REFUSAL = ".resume.jsonl", ".refused.json"


@dataclass(frozen=True, kw_only=True)
class TranscriptFiles:
    """The transcripts of a recording."""

    source: str
    paths: Mapping[str, Path]  # of each transcript, by format
    layout: Layout
    # Keep a journal while it is transcribed, with which it can be resumed; and keep the reason why it is no
    # recording, so that it is not tried again before it has changed.
    keep_journal: bool = False
    written: set[Path] = field(init=False, default_factory=set)  # those that have been written

    @property
    def exist(self) -> bool:
        """True if all of the transcripts are there, and there is at least one."""
        return bool(self.paths) and all(map(os.path.isfile, self.paths.values()))

    @contextmanager
    def open(self) -> Iterator[Callable[[Transcript], None]]:
        """Open the transcripts; the callable writes them, and each gets its name once it is whole.

        What an earlier run left of transcripts that were cut short is removed at the end.

        Raises
        ------
        HarkenError
            If one of them cannot be written; the others are.
        """
        with self._open(self.paths) as write:
            yield write
        left = [*self._partial_paths.values(), self._beside(_JOURNAL), self._beside(_REFUSAL)]
        for path in filter(None, left):
            with suppress(OSError):
                path.unlink()

    def write_partial(self, transcript: Transcript) -> list[Path]:
        """Write a transcript that is not whole, under other names, and return where what was done is.

        That it cannot be written is not reported: something else has failed already.
        """
        partial_paths = self._partial_paths
        missing = {name: path for name, path in partial_paths.items() if self.paths[name] not in self.written}
        if transcript.segments:
            with suppress(Exception), self._open(missing) as write:
                write(transcript)
        return [path for path in (*self.paths.values(), *partial_paths.values()) if path in self.written]

    @property
    def journal(self) -> Path | None:
        """Path of the journal, beside the first transcript; None for a pipe."""
        return self._kept(_JOURNAL)

    def refuse(self, error: Exception) -> None:
        """Keep the reason why it cannot be transcribed, if that is its own fault."""
        path = self._kept(_REFUSAL)
        if path and _is_own_fault(error) and self.refusal is None:
            refusal = {"recording": self._identity, "reason": str(error)}
            with suppress(OutputError):
                write_atomic(path, [json.dumps(refusal) + "\n"])

    @property
    def refusal(self) -> str | None:
        """The reason why it could not be transcribed, unless it has changed since; asked for before it is read."""
        if not (path := self._kept(_REFUSAL)):
            return None
        identity = self._identity
        try:
            refusal = json.loads(path.read_bytes())
            return str(refusal["reason"]) if refusal["recording"] == identity else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    @cached_property
    def _identity(self) -> list[int | str]:
        """Identity of the recording, and version of the program: a refusal holds as long as both are the same.

        It is what it was before the recording was read, or one that grew meanwhile would be refused for ever.
        """
        return [*recording_identity(self.source), __version__]

    @property
    def _partial_paths(self) -> dict[str, Path]:
        """Paths of the transcripts while they are not whole."""
        return {name: path.with_name(path.name + _PARTIAL) for name, path in self.paths.items()}

    def _kept(self, suffix: str) -> Path | None:
        """Return the path of what is kept between runs; None for a pipe."""
        return self._beside(suffix) if self.keep_journal and os.path.isfile(self.source) else None

    def _beside(self, suffix: str) -> Path | None:
        """Return the path of a file beside the first transcript; None if there are no files."""
        first = next(iter(self.paths.values()), None)
        return first and first.with_name(f"{Path(self.source).stem}{suffix}")

    @contextmanager
    def _open(self, paths: Mapping[str, Path]) -> Iterator[Callable[[Transcript], None]]:
        with ExitStack() as stack:
            files = {path: stack.enter_context(ExitStack()) for path in paths.values()}
            writers = {path: files[path].enter_context(open_atomic(path, durable=True)) for path in files}

            def write(transcript: Transcript) -> None:
                failures: list[HarkenError] = []
                for format_name, path in paths.items():
                    reference = recording_reference(self.source, path.parent)
                    try:
                        with files[path]:
                            for chunk in render(transcript, format_name, self.layout, reference):
                                writers[path](chunk)
                        self.written.add(path)
                    except HarkenError as error:  # as of a full disk, on which the others may have room
                        failures.append(error)
                if failures:
                    first, *others = failures
                    for other in others:
                        first.add_note(str(other))
                    raise first

            yield write


def _is_own_fault(error: Exception) -> bool:
    """Return whether a recording itself is at fault, and not the disk or the right to read it."""
    passing = isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING_ERRORS
    return isinstance(error, AudioError) and not isinstance(error, AudioNotFound) and not passing

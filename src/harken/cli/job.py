"""Transcribing recordings one after another: what is shown and written, what a failure leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter

from harken.api import Recognizer, Transcription
from harken.atomic import open_atomic
from harken.cli.exits import SOME_FAILED, Stop
from harken.cli.inputs import length_s
from harken.cli.layout import time
from harken.cli.screen import Form, Screen
from harken.decoding import Decoded
from harken.errors import AudioError, OutputError
from harken.formats import render
from harken.results import Attempt, Segment, Transcript
from harken.transcribe import TranscribeOptions


@dataclass
class Job:
    """Recordings to transcribe with one model, which is loaded when the first of them turns out to be audio.

    Parameters
    ----------
    screen : Screen
    load : callable
        Loads the model.
    options : TranscribeOptions
    form : callable
        How the transcript of a recording appears on standard output; None if it does not.
    verbose : bool
        Whether to say what computes, how fast, and why results were rejected.
    """

    screen: Screen
    load: Callable[[], Recognizer]
    options: TranscribeOptions
    form: Callable[[str], Form | None]
    verbose: bool
    _window_s: float = field(default=0.0, init=False)

    def run(self, targets: Mapping[str, Mapping[str, Path]]) -> int:
        """Transcribe every recording into its files, by form; where one of several fails, the others are done.

        Returns
        -------
        int
            Exit code.

        Raises
        ------
        AudioError, OutputError
            If there is only one recording, and it fails.
        Stop
            If the process is to end; the current recording has been written as far as it was done.
        """
        code = 0
        for source, files in targets.items():
            try:
                self._transcribe(source, files)
            except (AudioError, OutputError) as error:
                if len(targets) == 1:
                    raise
                self.screen.note(f"harken: {error}")
                code = SOME_FAILED
        return code

    def _transcribe(self, source: str, files: Mapping[str, Path]) -> None:
        total_s = length_s(source)
        with ExitStack() as stack:
            # Opened first: what cannot be written shows before the work, not after it.
            writes = {form: stack.enter_context(open_atomic(path)) for form, path in files.items()}
            recognizer, began_s = self._recognizer, perf_counter()
            work = recognizer.transcribe(
                source,
                self.options,
                progress=self.screen.track(source, total_s),
                window=self._window,
                decided=self._decided,
            )
            shown = _Shown(self.screen, self.form(source))
            failure = _follow(work, shown)
            done = work.so_far()
            if failure and not done.segments:
                raise failure
            for form, write in writes.items():
                for piece in render(done, form):
                    write(piece)
        shown.end(done)
        if isinstance(failure, Stop):
            raise _explained(failure, source, done, files)
        if failure:
            raise failure
        self._verbosely(_account(source, work, perf_counter() - began_s))

    @cached_property
    def _recognizer(self) -> Recognizer:
        began_s = perf_counter()
        self.screen.waiting("loading the model ...")
        try:
            recognizer = self.load()
        finally:
            self.screen.waiting("")
        self._verbosely(f"{recognizer!r} loaded in {perf_counter() - began_s:.2f} s")
        return recognizer

    def _window(self, start_s: float, prompt: tuple[int, ...]) -> None:
        self._window_s = start_s

    def _decided(self, decoded: Decoded, attempts: tuple[Attempt, ...]) -> None:
        for attempt in attempts:
            if attempt.reason:
                at = f"window at {time(self._window_s)}"
                self._verbosely(f"{at}: rejected at temperature {attempt.temperature:g}: {attempt.reason}")

    def _verbosely(self, text: str) -> None:
        if self.verbose:
            self.screen.note(text)


class _Shown:
    """A transcript on standard output; it begins with its first segment, so that a failure shows nothing."""

    def __init__(self, screen: Screen, form: Form | None) -> None:
        self._say, self._form = screen.say, form
        self._begun = False

    def add(self, segment: Segment) -> None:
        if self._form:
            self._begin(self._form)
            self._say(self._form.segment(segment))

    def end(self, transcript: Transcript) -> None:
        if self._form:
            self._begin(self._form)
            self._say(self._form.footer(transcript))

    def _begin(self, form: Form) -> None:
        if not self._begun:
            self._begun = True
            self._say(form.header())


def _follow(work: Transcription, shown: _Shown) -> AudioError | Stop | None:
    """Show segments until there are no more; what came in between."""
    try:
        for segment in work:
            shown.add(segment)
    except (AudioError, Stop) as failure:
        return failure
    return None


def _explained(stop: Stop, source: str, done: Transcript, files: Mapping[str, Path]) -> Stop:
    kept = f"; what was done is in {', '.join(map(str, files.values()))}" if files else ""
    return Stop(stop.code, f"{source}: {stop} at {time(done.segments[-1].end_s)}{kept}")


def _account(source: str, work: Transcription, took_s: float) -> str:
    done_s, stats = work.so_far().duration_s, work.stats
    return (
        f"{source}: {time(done_s)} in {took_s:.2f} s, {done_s / took_s:.1f} times real time, "
        f"{stats.sampled_tokens} tokens, windows decoded: {stats.windows}"
    )

"""Transcribing recordings one after another: what is shown and written, what a failure leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from time import perf_counter

from harken.api import Recognizer
from harken.atomic import open_atomic
from harken.cli.exits import SOME_FAILED, Stop
from harken.cli.inputs import length_s, recording
from harken.cli.layout import spoken, time
from harken.cli.screen import Screen
from harken.decoding import Decoded, DecodeStats
from harken.errors import AudioError, OutputError
from harken.formats import Form, Layout, render
from harken.results import Attempt, Segment, Transcript
from harken.transcribe import Hooks, TranscribeOptions
from harken.transcribe.hooks import Progress
from harken.transcription import Transcription


@dataclass
class Job:
    """Recordings to transcribe with one model, which is loaded once one of them turns out to be audio.

    Parameters
    ----------
    screen : Screen
    load : callable
        Loads the model.
    options : TranscribeOptions
    layout : Layout
        Of what is written to files.
    form : callable
        How the transcript of a recording appears on standard output; None if it does not.
    verbose : bool
        Whether to say what computes, how fast, which language, and what was rejected or left out and why.
    """

    screen: Screen
    load: Callable[[], Recognizer]
    options: TranscribeOptions
    layout: Layout
    form: Callable[[str], Form | None]
    verbose: bool

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
            If the process is to end; what has been done of each recording has been written.
        """
        code = 0
        lengths_s = {source: _length_or_error(source) for source in targets}
        works = self._begin(
            {source: its for source, its in lengths_s.items() if not isinstance(its, AudioError)}
        )
        for source, files in targets.items():
            failed = lengths_s[source]
            try:
                if isinstance(failed, AudioError):
                    raise failed
                self._finish(source, works[source], files)
            except Stop as stop:
                self._save_others(source, works, targets)
                raise stop
            except (AudioError, OutputError) as error:
                if len(targets) == 1:
                    raise
                if source in works:
                    works[source].stop()
                self.screen.note(f"harken: {error}")
                code = SOME_FAILED
        return code

    def _begin(self, lengths_s: Mapping[str, float | None]) -> dict[str, Transcription]:
        """Line the recordings up; nothing is decoded yet."""
        if not lengths_s:
            return {}
        progress = _Progress(self.screen, lengths_s, together=self.options.batch_size > 1)
        hooks = {
            position: Hooks(progress=partial(progress, source), decided=partial(self._decided, source))
            for position, source in enumerate(lengths_s)
        }
        works = self._recognizer.transcribe_many(lengths_s, self.options, hooks=hooks)
        return dict(zip(lengths_s, works, strict=True))

    def _finish(self, source: str, work: Transcription, files: Mapping[str, Path]) -> None:
        # Opened first: what cannot be written shows before the work, not after it.
        with self._opened(source, files) as write:
            began_s = perf_counter()
            shown = _Shown(self.screen, self.form(source))
            failure = _follow(work, shown)
            done = work.so_far()
            if failure and not done.segments:
                raise failure
            write(done)
        shown.end(done)
        if isinstance(failure, Stop):
            raise _explained(failure, source, done, files)
        if failure:
            raise failure
        for line in (*_story(done), _account(work, perf_counter() - began_s), *_drafting(work.stats)):
            self._verbosely(f"{source}: {line}")

    def _save_others(
        self, stopped: str, works: Mapping[str, Transcription], targets: Mapping[str, Mapping[str, Path]]
    ) -> None:
        """Write what has been done of the recordings behind the one that was stopped, which were in work with it."""
        behind = list(works)[list(works).index(stopped) + 1 :]
        for source in behind:
            done = works[source].so_far()
            if not done.segments:
                continue
            with self._opened(source, targets[source]) as write:
                write(done)

    @contextmanager
    def _opened(self, source: str, files: Mapping[str, Path]) -> Iterator[Callable[[Transcript], None]]:
        """Open the files of a recording, by form; what is given fills them."""
        with ExitStack() as stack:
            writes = {form: stack.enter_context(open_atomic(path)) for form, path in files.items()}

            def write(transcript: Transcript) -> None:
                for form, path in files.items():
                    for piece in render(transcript, form, self.layout, recording(source, path.parent)):
                        writes[form](piece)

            yield write

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

    def _decided(self, source: str, start_s: float, decoded: Decoded, attempts: tuple[Attempt, ...]) -> None:
        for attempt in attempts:
            if attempt.reason:
                at = f"{source}: window at {time(start_s)}"
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


class _Progress:
    """Moves the bar: of one recording after another, or of all together where they are decoded together."""

    def __init__(self, screen: Screen, lengths_s: Mapping[str, float | None], *, together: bool) -> None:
        self._screen, self._lengths_s = screen, lengths_s
        self._together = together and len(lengths_s) > 1
        self._done_s: dict[str, float] = {}
        self._shows: dict[str, Progress] = {}

    def __call__(self, source: str, done_s: float, finished: bool) -> None:
        self._done_s[source] = done_s
        label, total_s = source, self._lengths_s[source]
        if self._together:
            known = [length for length in self._lengths_s.values() if length is not None]
            label, total_s = f"{len(self._lengths_s)} recordings", sum(known) or None
            done_s = sum(self._done_s.values())
        if label not in self._shows:
            self._shows[label] = self._screen.track(label, total_s)
        self._shows[label](done_s, finished)


def _length_or_error(source: str) -> float | AudioError | None:
    try:
        return length_s(source)
    except AudioError as error:
        return error


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


def _story(done: Transcript) -> Iterator[str]:
    """What was decided about a recording: what language it is in, and what was left out of it."""
    if not done.segments:
        yield "no speech found" if done.speech == () else "nothing said"
    languages = [(code, next(its)) for code, its in groupby(done.segments, lambda its: its.language)]
    if len(languages) > 1:
        yield "languages: " + ", ".join(f"{code} from {time(first.start_s)}" for code, first in languages)
    elif done.language_probability is not None:
        yield f"language: {done.language}, probability {done.language_probability:.2f}"
    for dropped in done.dropped:
        segment = dropped.segment
        yield f"left out {spoken(segment.start_s, segment.end_s, segment.text)}: {dropped.reason}"


def _account(work: Transcription, took_s: float) -> str:
    done_s, stats = work.so_far().duration_s, work.stats
    return (
        f"{time(done_s)} in {took_s:.2f} s, {done_s / took_s:.1f} times real time, "
        f"{stats.sampled_tokens} tokens, windows decoded: {stats.windows}"
    )


def _drafting(stats: DecodeStats) -> Iterator[str]:
    """What became of drafts, where something drafts."""
    if stats.drafted or stats.rested:
        yield (
            f"drafted tokens accepted: {stats.accepted} of {stats.drafted}, "
            f"{stats.tokens_per_forward:.2f} tokens a forward pass, steps without a draft: {stats.rested}"
        )
    if stats.unspeculated:
        yield f"windows without drafts, since beam search goes without: {stats.unspeculated}"

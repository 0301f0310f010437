"""Recordings as the jobs of a command: each transcript is whole or absent, no file ends a batch; remarks on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, groupby
from pathlib import Path
from time import perf_counter
from typing import Any

from harken.api import Recognizer
from harken.cli.exits import SOME_FAILED, UNEXPECTED, describe_error, exit_code
from harken.cli.inputs import output_paths, recording_duration_s, refuse_overwriting
from harken.cli.model_options import chosen_files, load_diarizer_with_status, load_model_with_status
from harken.cli.signals import deferring_stop, saving_on_stop
from harken.cli.terminal import Screen, format_time, format_timed_text, no_speech, pluralize
from harken.cli.transcript_files import TranscriptFiles
from harken.decoding import DecodeStats, DecodingResult
from harken.errors import AudioError
from harken.files import make_folder
from harken.formats import Layout, TranscriptFormat
from harken.results import Attempt, Transcript
from harken.speakers.diarizer import Diarizer
from harken.transcribe import Callbacks, TranscribeOptions
from harken.transcribe.options import ProgressCallback
from harken.transcription import Transcription

DONE, REFUSED, FAILED = "done", "refused", "failed"
"""What becomes of a recording: it is transcribed, it is none, or it failed for another reason."""
MOST_NAMES = 10
"""Recordings that the last line names."""


@dataclass(kw_only=True)
class FilesJob:
    """A job over recordings: how they are transcribed, and where the transcripts go."""

    screen: Screen
    params: Mapping[str, Any]  # values of `model_options` and `speaker_options`
    options: TranscribeOptions
    layout: Layout
    format_names: Sequence[str]  # of the files; none are written without any
    folder: Path | None  # of the files, which is made; None for that of each recording
    # Returns the writer of a recording's transcript on standard output.
    stdout_writer: Callable[[str], TranscriptFormat]
    draft: str | None = None  # that a single recording is expected to have
    skip_existing: bool = False  # recordings whose files all exist
    keep_journals: bool = False  # as for `TranscriptFiles`
    # Report the engine, the speed, the language, what was rejected or dropped and why, and speech without words.
    verbose: bool = False
    quiet: bool = False  # report only errors
    # Recordings of the last run that failed, for another reason than what they are.
    failed: Sequence[str] = field(init=False, default=())

    @cached_property
    def recognizer(self) -> Recognizer:
        """The model, which is loaded once."""
        began_s = perf_counter()
        recognizer = load_model_with_status(self.screen, self.params)
        if self.verbose:
            self.screen.write_stderr(f"{recognizer!r} loaded in {perf_counter() - began_s:.2f} s")
        return recognizer

    @cached_property
    def diarizer(self) -> Diarizer | None:
        """The diarizer, loaded once; None if speakers are not told apart."""
        return load_diarizer_with_status(self.screen, self.params)

    def run(self, sources: Sequence[str], *, is_single: bool) -> int:
        """Transcribe recordings, say what was done, and return the exit code; the error of a single one is raised."""
        files = self.files(sources)
        refuse_overwriting(
            [path for each in files.values() for path in each.paths.values()],
            [*sources, *chosen_files(self.params)],
        )
        if self.folder:
            make_folder(self.folder)
        remaining = [source for source in sources if not (self.skip_existing and files[source].exist)]
        outcomes = _FilesRun(self, files, is_single).run(remaining)
        self.failed = [source for source, outcome in outcomes.items() if outcome == FAILED]
        n_skipped = len(sources) - len(remaining)
        if self.format_names and (n_skipped or not is_single) and not self.quiet:
            self.screen.write_stderr(_summary(outcomes, n_skipped))
        return SOME_FAILED if {*outcomes.values()} - {DONE} else 0

    def files(
        self, sources: Sequence[str], claimed: dict[str, str] | None = None
    ) -> dict[str, TranscriptFiles]:
        """Return the files of recordings; `claimed` is as for `output_paths`."""
        return {
            source: TranscriptFiles(
                source=source, paths=paths, layout=self.layout, keep_journal=self.keep_journals
            )
            for source, paths in output_paths(sources, self.format_names, self.folder, claimed).items()
        }


@dataclass
class _FilesRun:
    """One run of a job; the model is loaded once a recording proves to be one.

    If it `is_single`, there is only one recording, whose error is the command's.
    """

    job: FilesJob
    files: Mapping[str, TranscriptFiles]
    is_single: bool
    _is_batch: bool = field(init=False, default=False)  # windows of several are decoded together
    _unfinished: dict[str, Transcription] = field(init=False, default_factory=dict)
    _printer: _TranscriptPrinter | None = field(init=False, default=None)

    def run(self, sources: Iterable[str]) -> dict[str, str]:
        """Transcribe every recording into its files, and return what became of each; others follow one that fails.

        A transcript gets its name when it is whole. Of a recording that breaks off, or that is being transcribed when
        the process is to end, the text so far is written beside it, under the name with ``.partial`` appended.
        """
        durations_s = {source: self._duration_or_error(source) for source in sources}
        recordings = {
            source: duration_s
            for source, duration_s in durations_s.items()
            if not isinstance(duration_s, AudioError)
        }
        options = self.job.options
        self._is_batch = (
            options.effective_batch_size > 1 and len(recordings) > 1 and options.channels == "mixed"
        )
        self._unfinished = self._start_transcriptions(recordings)
        transcriptions = [*self._unfinished.values()]
        began_s = perf_counter()
        try:
            with saving_on_stop(self._save_interrupted):
                outcomes = {source: self._run_one(source, probed) for source, probed in durations_s.items()}
        finally:
            for transcription in self._unfinished.values():
                transcription.stop()
        if self._is_batch:
            total_s = sum(transcription.done_s for transcription in transcriptions)
            for line in speed_lines(transcriptions[0].batch_stats, total_s, perf_counter() - began_s):
                self._log_verbose(line)
        return outcomes

    def _run_one(self, source: str, probed: float | AudioError | None) -> str:
        """Transcribe a recording of that duration, or of which that is the error; return what became of it.

        If it fails, the result so far is written, and the error notes where.
        """
        try:
            if isinstance(probed, AudioError):
                raise probed
            self._transcribe_one(source, self._unfinished[source])
        except Exception as error:
            if transcription := self._unfinished.pop(source, None):
                transcription.stop()
                if saved := self.files[source].write_partial(transcription.so_far()):
                    error.add_note(_saved_note(saved))
            unexpected = exit_code(error) == UNEXPECTED
            if self.is_single or (unexpected and os.environ.get("HARKEN_DEBUG")):
                raise
            name = f"{source}: " if unexpected else ""
            self.job.screen.write_stderr(f"harken: {name}{describe_error(error)}")
            return REFUSED if isinstance(error, AudioError) else FAILED
        return DONE

    def _duration_or_error(self, source: str) -> float | AudioError | None:
        """Return the duration of a recording, or the error for which it is refused, now or as before."""
        if reason := self.files[source].refusal:
            return AudioError(f"{reason}; it has not changed since")
        try:
            return recording_duration_s(source)
        except AudioError as error:
            self.files[source].refuse(error)
            return error

    def _start_transcriptions(self, durations_s: Mapping[str, float | None]) -> dict[str, Transcription]:
        """Make the transcription of every recording; none is decoded yet."""
        if not durations_s:
            return {}
        diarizer = self.job.diarizer  # before the model, which may take long: its options may be wrong
        screen = self.job.screen
        progress = (
            _batch_progress(screen, durations_s)
            if self._is_batch
            else {source: screen.track(source, duration_s) for source, duration_s in durations_s.items()}
        )
        callbacks = {
            index: Callbacks(
                on_progress=progress[source], on_window_end=partial(self._log_rejected_attempts, source)
            )
            for index, source in enumerate(durations_s)
        }
        journals = {
            index: journal
            for index, source in enumerate(durations_s)
            if (journal := self.files[source].journal)
        }
        transcriptions = self.job.recognizer.transcribe_many(
            durations_s,
            self.job.options,
            callbacks=callbacks,
            journals=journals,
            diarizer=diarizer,
            draft=self.job.draft,
        )
        return dict(zip(durations_s, transcriptions, strict=True))

    def _transcribe_one(self, source: str, transcription: Transcription) -> None:
        began_s = perf_counter()
        self._printer = printer = _TranscriptPrinter(self.job.screen, self.job.stdout_writer(source))
        with deferring_stop() as begin_last_part:
            # Opened first, so that a file that cannot be written fails before the work.
            with self.files[source].open() as write:
                try:
                    printer.print(transcription)
                except AudioError as error:
                    self.files[source].refuse(error)
                    raise
                transcript = transcription.so_far()
                self._check_clips(source, transcript)
                begin_last_part()
                write(transcript)
            del self._unfinished[source]
        if transcript.speech == () and transcription.peak:
            self._warn(f"{source}: {no_speech(transcript.duration_s, transcription.peak)}")
        elif transcript.speech and not transcript.segments:
            self._warn(f"{source}: no text for the speech that was found; --verbose says why")
        probability = transcript.language_probability
        if (
            transcript.segments
            and probability is not None
            and probability < self.job.options.language_threshold
        ):
            self._warn(
                f"{source}: the language may be another than {transcript.language}, of probability "
                f"{probability:.2f}; --language names it"
            )
        speed = speed_lines(transcription.stats, transcript.duration_s, perf_counter() - began_s)
        for line in chain(language_and_loss_lines(transcript), () if self._is_batch else speed):
            self._log_verbose(f"{source}: {line}")

    def _save_interrupted(self, message: str) -> str:
        """Write the results so far of all recordings that are not finished, which may have been decoded together.

        Return the message with the place in the current recording, and the files.
        """
        transcripts = {source: transcription.so_far() for source, transcription in self._unfinished.items()}
        saved = [
            path
            for source, transcript in transcripts.items()
            for path in self.files[source].write_partial(transcript)
        ]
        for source, transcript in transcripts.items():
            if transcript.segments:
                if self._printer:
                    self._printer.end(transcript)
                end = format_time(transcript.segments[-1].end_s)
                return "; ".join([f"{source}: {message} at {end}", *([_saved_note(saved)] if saved else [])])
        return message

    def _check_clips(self, source: str, transcript: Transcript) -> None:
        """Report clips that lie behind the end of a recording; raise an AudioError if all do."""
        starts_s = self.job.options.clip_timestamps[::2]
        behind_s = [start_s for start_s in starts_s if start_s >= transcript.duration_s]
        if not behind_s:
            return
        end, first = format_time(transcript.duration_s), format_time(behind_s[0])
        message = f"{source}: ends at {end}, before the clip at {first}"
        if behind_s == [*starts_s]:
            raise AudioError(message)
        self._warn(message)

    def _warn(self, text: str) -> None:
        if not self.job.quiet:
            self.job.screen.write_stderr(f"harken: {text}")

    def _log_rejected_attempts(
        self, source: str, start_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]
    ) -> None:
        for attempt in attempts:
            if attempt.reason:
                where = f"{source}: window at {format_time(start_s)}"
                self._log_verbose(f"{where}: rejected at temperature {attempt.temperature:g}: {attempt.reason}")

    def _log_verbose(self, text: str) -> None:
        if self.job.verbose:
            self.job.screen.write_stderr(text)


class _TranscriptPrinter:
    """A transcript on standard output; its header waits for the first segment, so that a failure prints nothing."""

    def __init__(self, screen: Screen, writer: TranscriptFormat) -> None:
        self._screen, self._writer = screen, writer
        self._header = writer.header_chunks()
        self._is_ended = False

    def print(self, transcription: Transcription) -> None:
        """Print the segments as they come; what is printed is whole in its format even if the recording breaks off."""
        try:
            for segment in transcription:
                self._write(self._writer.segment(segment))
        except BaseException:
            if (transcript := transcription.so_far()).segments:
                self.end(transcript)
            raise
        self.end(transcription.so_far())

    def end(self, transcript: Transcript) -> None:
        """Print what is behind the last segment, once."""
        if not self._is_ended:
            self._is_ended = True
            self._write(self._writer.footer(transcript))

    def _write(self, text: str) -> None:
        for chunk in chain(self._header, [text]):  # of the header nothing is left after the first time
            self._screen.write_stdout(chunk)


def _batch_progress(screen: Screen, durations_s: Mapping[str, float | None]) -> dict[str, ProgressCallback]:
    """Return the progress callbacks of recordings that are decoded in one batch, and have one bar."""
    show = screen.track_all(f"{len(durations_s)} recordings", durations_s.values())
    all_done_s = dict.fromkeys(durations_s, 0.0)

    def progress(source: str, done_s: float, finished: bool) -> None:
        all_done_s[source] = done_s
        show(sum(all_done_s.values()), finished)

    return {source: partial(progress, source) for source in durations_s}


def _saved_note(paths: Sequence[Path]) -> str:
    return f"what was done is in {', '.join(map(str, paths))}"


def _summary(outcomes: Mapping[str, str], n_skipped: int) -> str:
    """Return the line that says what was done, skipped and refused, and what failed."""
    parts = [f"{pluralize([*outcomes.values()].count(DONE), 'recording')} {DONE}"]
    if n_skipped:
        parts.append(f"{n_skipped} skipped, as the transcripts exist")
    for outcome in (REFUSED, FAILED):
        if names := [source for source, became in outcomes.items() if became == outcome]:
            others = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            parts.append(f"{len(names)} {outcome}: {', '.join(names[:MOST_NAMES])}{others}")
    return f"harken: {'; '.join(parts)}"


def language_and_loss_lines(transcript: Transcript) -> Iterator[str]:
    """Yield lines about the language of a recording, the segments dropped from it, and speech without words."""
    if not transcript.segments:
        yield "no text"
    if transcript.speakers:
        yield "speakers: " + ", ".join(f"{each.name} {each.seconds:.1f} s" for each in transcript.speakers)
    languages = [
        (code, next(segments))
        for code, segments in groupby(transcript.segments, lambda segment: segment.language)
    ]
    if len(languages) > 1:
        yield "languages: " + ", ".join(
            f"{code} from {format_time(first.start_s)}" for code, first in languages
        )
    elif transcript.language_probability is not None:
        yield f"language: {transcript.language}, probability {transcript.language_probability:.2f}"
    for dropped in transcript.dropped:
        segment = dropped.segment
        yield f"dropped {format_timed_text(segment.start_s, segment.end_s, segment.text)}: {dropped.reason}"
    for missing in transcript.unwritten:
        times = f"{format_time(missing.start_s)} to {format_time(missing.end_s)}"
        yield f"speech without words from {times}: {missing.reason}"


def speed_lines(stats: DecodeStats, duration_s: float, elapsed_s: float) -> Iterator[str]:
    """Yield lines about the speed of a transcription, and about drafted tokens if anything was drafted."""
    yield (
        f"{format_time(duration_s)} in {elapsed_s:.2f} s, {duration_s / elapsed_s:.1f} times real time, "
        f"{stats.sampled_tokens} tokens, windows decoded: {stats.windows}"
    )
    if stats.drafted or stats.skipped_steps:
        yield (
            f"drafted tokens accepted: {stats.accepted} of {stats.drafted}, "
            f"{stats.tokens_per_forward:.2f} tokens per forward pass, steps without a draft: {stats.skipped_steps}"
        )
    if stats.undrafted_windows:
        yield f"windows without drafts, as beam search does not use them: {stats.undrafted_windows}"

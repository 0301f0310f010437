"""``harken transcribe``: transcribes recordings, to the screen or to files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from click.core import ParameterSource

from harken.api import Recognizer
from harken.atomic import open_atomic
from harken.cli.exits import EPILOGUE, SOME_FAILED, Stop
from harken.cli.inputs import (
    STDIN,
    expand_patterns,
    make_folder,
    output_paths,
    recording_duration_s,
    recording_reference,
)
from harken.cli.options import (
    WORD_FORMATS,
    Command,
    decoding_options,
    layout_from,
    layout_options,
    list_option,
    load_model_with_status,
    model_options,
    single_option,
    transcribe_options_from,
)
from harken.cli.screen import Screen, TimestampedLines, format_time, format_timed_text
from harken.decoding import DecodeStats, DecodingResult
from harken.errors import AudioError, OutputError
from harken.formats import FORMATS, Layout, TranscriptFormat, Writer, render
from harken.results import Attempt, Segment, Transcript
from harken.transcribe import Callbacks, TranscribeOptions
from harken.transcribe.callbacks import ProgressCallback
from harken.transcription import Transcription


@dataclass
class FileTranscriber:
    """The transcription of files with one model, which is loaded once one of them proves to be a recording.

    Parameters
    ----------
    screen : Screen
    load : callable
        Loads the model.
    options : TranscribeOptions
    layout : Layout
        Layout of the files.
    stdout_writer : callable
        Returns the writer of a recording's transcript on standard output, or None if it is not shown.
    verbose : bool
        Report the engine, the speed, the language, and what was rejected or dropped and why.
    """

    screen: Screen
    load: Callable[[], Recognizer]
    options: TranscribeOptions
    layout: Layout
    stdout_writer: Callable[[str], TranscriptFormat | None]
    verbose: bool

    def run(self, output_paths: Mapping[str, Mapping[str, Path]]) -> int:
        """Transcribe every recording into its files, by format; if one of several fails, continue with the others.

        Returns
        -------
        int
            Exit code.

        Raises
        ------
        AudioError, OutputError
            If there is only one recording, and it fails.
        Stop
            If the process is to end; the results so far have been written.
        """
        code = 0
        durations_s = {source: _duration_or_error(source) for source in output_paths}
        transcriptions = self._start_transcriptions(
            {
                source: duration_s
                for source, duration_s in durations_s.items()
                if not isinstance(duration_s, AudioError)
            }
        )
        for source, files in output_paths.items():
            probed = durations_s[source]
            try:
                if isinstance(probed, AudioError):
                    raise probed
                self._transcribe_one(source, transcriptions[source], files)
            except Stop as stop:
                self._save_partial_transcripts(source, transcriptions, output_paths)
                raise stop
            except (AudioError, OutputError) as error:
                if len(output_paths) == 1:
                    raise
                if source in transcriptions:
                    transcriptions[source].stop()
                self.screen.write_stderr(f"harken: {error}")
                code = SOME_FAILED
        return code

    def _start_transcriptions(self, durations_s: Mapping[str, float | None]) -> dict[str, Transcription]:
        """Make the transcription of every recording; none is decoded yet."""
        if not durations_s:
            return {}
        progress = _BatchProgress(self.screen, durations_s, batched=self.options.batch_size > 1)
        callbacks = {
            index: Callbacks(
                on_progress=partial(progress, source),
                on_window_end=partial(self._log_rejected_attempts, source),
            )
            for index, source in enumerate(durations_s)
        }
        transcriptions = self._recognizer.transcribe_many(durations_s, self.options, callbacks=callbacks)
        return dict(zip(durations_s, transcriptions, strict=True))

    def _transcribe_one(self, source: str, transcription: Transcription, files: Mapping[str, Path]) -> None:
        # Opened first, so that a file that cannot be written fails before the work.
        with self._open_outputs(source, files) as write:
            began_s = perf_counter()
            printer = _TranscriptPrinter(self.screen, self.stdout_writer(source))
            failure = _print_segments(transcription, printer)
            transcript = transcription.so_far()
            if failure and not transcript.segments:
                raise failure
            write(transcript)
        printer.write_footer(transcript)
        if isinstance(failure, Stop):
            raise _stop_with_context(failure, source, transcript, files)
        if failure:
            raise failure
        for line in (
            *_language_and_dropped_lines(transcript),
            _speed_summary(transcription, perf_counter() - began_s),
            *_speculation_summary(transcription.stats),
        ):
            self._log_verbose(f"{source}: {line}")

    def _save_partial_transcripts(
        self,
        stopped_source: str,
        transcriptions: Mapping[str, Transcription],
        output_paths: Mapping[str, Mapping[str, Path]],
    ) -> None:
        """Write the results so far of the recordings after the stopped one, which were decoded along with it."""
        remaining = list(transcriptions)[list(transcriptions).index(stopped_source) + 1 :]
        for source in remaining:
            transcript = transcriptions[source].so_far()
            if not transcript.segments:
                continue
            with self._open_outputs(source, output_paths[source]) as write:
                write(transcript)

    @contextmanager
    def _open_outputs(self, source: str, files: Mapping[str, Path]) -> Iterator[Callable[[Transcript], None]]:
        """Open the files of a recording; the callable writes a transcript to all of them."""
        with ExitStack() as stack:
            write_by_format = {
                format_name: stack.enter_context(open_atomic(path)) for format_name, path in files.items()
            }

            def write(transcript: Transcript) -> None:
                for format_name, path in files.items():
                    reference = recording_reference(source, path.parent)
                    for chunk in render(transcript, format_name, self.layout, reference):
                        write_by_format[format_name](chunk)

            yield write

    @cached_property
    def _recognizer(self) -> Recognizer:
        began_s = perf_counter()
        recognizer = self.load()
        self._log_verbose(f"{recognizer!r} loaded in {perf_counter() - began_s:.2f} s")
        return recognizer

    def _log_rejected_attempts(
        self, source: str, start_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]
    ) -> None:
        for attempt in attempts:
            if attempt.reason:
                where = f"{source}: window at {format_time(start_s)}"
                self._log_verbose(f"{where}: rejected at temperature {attempt.temperature:g}: {attempt.reason}")

    def _log_verbose(self, text: str) -> None:
        if self.verbose:
            self.screen.write_stderr(text)


class _TranscriptPrinter:
    """The transcript on standard output; its header waits for the first segment, so that a failure prints nothing."""

    def __init__(self, screen: Screen, writer: TranscriptFormat | None) -> None:
        self._write, self._writer = screen.write_stdout, writer
        self._header_written = False

    def write_segment(self, segment: Segment) -> None:
        if self._writer:
            self._write_header_once(self._writer)
            self._write(self._writer.segment(segment))

    def write_footer(self, transcript: Transcript) -> None:
        if self._writer:
            self._write_header_once(self._writer)
            self._write(self._writer.footer(transcript))

    def _write_header_once(self, writer: TranscriptFormat) -> None:
        if not self._header_written:
            self._header_written = True
            self._write(writer.header())


class _BatchProgress:
    """The progress callback: of one recording after another, or of all if they are decoded in one batch."""

    def __init__(self, screen: Screen, durations_s: Mapping[str, float | None], *, batched: bool) -> None:
        self._screen, self._durations_s = screen, durations_s
        self._batched = batched and len(durations_s) > 1
        self._done_s_by_source: dict[str, float] = {}
        self._progress_callbacks: dict[str, ProgressCallback] = {}

    def __call__(self, source: str, done_s: float, finished: bool) -> None:
        self._done_s_by_source[source] = done_s
        label, total_s = source, self._durations_s[source]
        if self._batched:
            known_durations_s = [
                duration_s for duration_s in self._durations_s.values() if duration_s is not None
            ]
            label, total_s = f"{len(self._durations_s)} recordings", sum(known_durations_s) or None
            done_s = sum(self._done_s_by_source.values())
        if label not in self._progress_callbacks:
            self._progress_callbacks[label] = self._screen.track(label, total_s)
        self._progress_callbacks[label](done_s, finished)


def _duration_or_error(source: str) -> float | AudioError | None:
    try:
        return recording_duration_s(source)
    except AudioError as error:
        return error


def _print_segments(transcription: Transcription, printer: _TranscriptPrinter) -> AudioError | Stop | None:
    """Print the segments as they come; return the error that ended them early, if any."""
    try:
        for segment in transcription:
            printer.write_segment(segment)
    except (AudioError, Stop) as failure:
        return failure
    return None


def _stop_with_context(stop: Stop, source: str, transcript: Transcript, files: Mapping[str, Path]) -> Stop:
    saved = f"; what was done is in {', '.join(map(str, files.values()))}" if files else ""
    return Stop(stop.code, f"{source}: {stop} at {format_time(transcript.segments[-1].end_s)}{saved}")


def _language_and_dropped_lines(transcript: Transcript) -> Iterator[str]:
    """Yield lines about the language of a recording and the segments dropped from it."""
    if not transcript.segments:
        yield "no speech found" if transcript.speech == () else "no text"
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


def _speed_summary(transcription: Transcription, elapsed_s: float) -> str:
    done_s, stats = transcription.so_far().duration_s, transcription.stats
    return (
        f"{format_time(done_s)} in {elapsed_s:.2f} s, {done_s / elapsed_s:.1f} times real time, "
        f"{stats.sampled_tokens} tokens, windows decoded: {stats.windows}"
    )


def _speculation_summary(stats: DecodeStats) -> Iterator[str]:
    """Yield lines about drafted tokens, if anything was drafted."""
    if stats.drafted or stats.skipped_steps:
        yield (
            f"drafted tokens accepted: {stats.accepted} of {stats.drafted}, "
            f"{stats.tokens_per_forward:.2f} tokens per forward pass, steps without a draft: {stats.skipped_steps}"
        )
    if stats.undrafted_windows:
        yield f"windows without drafts, as beam search does not use them: {stats.undrafted_windows}"


def _parse_format_name(text: str) -> str:
    """Return the name of a format, or ``all``."""
    if text not in (*FORMATS, "all"):
        raise click.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}, all")
    return text


output_option = partial(single_option, section="Output")


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@list_option(
    *("-f", "--format", "format_names"),
    section="Output",
    parse_item=_parse_format_name,
    metavar="FORMAT,...",
    help=f"Formats to write: {', '.join(FORMATS)}, or all of them.",
)
@output_option(
    *("-o", "--output-dir"),
    metavar="DIR",
    help="Folder of the files, created if missing; - is standard output. By default that of the recording.",
)
@output_option(
    "-q", "--quiet", is_flag=True, help="Print only errors, and the transcript if no file is written."
)
@output_option(
    *("-v", "--verbose"),
    is_flag=True,
    help="Report the engine, the speed, the language, and what was rejected or dropped and why.",
)
@output_option("--progress/--no-progress", default=True, help="Show a progress bar on a terminal.")
@layout_options
@model_options
@decoding_options
def command(files: Sequence[str], format_names: Sequence[str], output_dir: str | None, **params: Any) -> int:
    """Transcribe recordings.

    FILE is a recording of any kind, a video with sound, a pattern such as 'talks/*.mp3', or - for standard
    input.

    Without --format and --output-dir the transcript appears on the screen as it is made. With --format it is
    written to files beside the recordings: talk.mp3 becomes talk.srt. With --output-dir alone the format is txt.

    A file that fails is reported, and the others are transcribed. Ctrl-C writes the current transcript so far.
    """
    sources = expand_patterns(files)
    format_names = tuple(FORMATS) if "all" in format_names else tuple(dict.fromkeys(format_names))
    layout = layout_from(params)
    options = _with_word_timestamps(transcribe_options_from(params), layout, format_names)
    to_stdout = output_dir == STDIN
    if to_stdout and (len(sources), len(format_names)) != (1, 1):
        raise click.UsageError("--output-dir - takes one FILE and one --format")
    if to_stdout:
        targets_by_source: dict[str, dict[str, Path]] = {sources[0]: {}}
    else:
        targets_by_source = output_paths(
            sources, format_names or ("txt",) * bool(output_dir), Path(output_dir) if output_dir else None
        )
    if output_dir and not to_stdout:
        make_folder(Path(output_dir))

    def stdout_writer(source: str) -> TranscriptFormat | None:
        """Return the writer of a transcript on standard output, or None if it is not shown."""
        if to_stdout:
            return Writer(format_names[0], layout, recording_reference(source, Path()))
        if targets_by_source[source] and (params["quiet"] or not sys.stdout.isatty()):
            return None
        return TimestampedLines(source if len(sources) > 1 else None)

    with Screen(params["progress"] and not params["quiet"]) as screen:
        load = partial(load_model_with_status, screen, params)
        transcriber = FileTranscriber(screen, load, options, layout, stdout_writer, verbose=params["verbose"])
        return transcriber.run(targets_by_source)


def _with_word_timestamps(
    options: TranscribeOptions, layout: Layout, format_names: Sequence[str]
) -> TranscribeOptions:
    """Turn on word timestamps if the output shows words, unless the user turned them off."""
    if options.word_timestamps or not (layout.needs_words or WORD_FORMATS & {*format_names}):
        return options
    if click.get_current_context().get_parameter_source("word_timestamps") is ParameterSource.DEFAULT:
        return replace(options, word_timestamps=True)
    if layout.needs_words:
        raise click.UsageError("--no-word-timestamps excludes options that lay out lines or show words")
    return options

"""``harken listen``: transcribes live audio, with captions on the screen while somebody speaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from harken.api import Recognizer
from harken.cli.captions import CaptionRenderer, EventRenderer, LineRenderer, live_event_json
from harken.cli.exits import EPILOGUE, Stop
from harken.cli.inputs import STDIN
from harken.cli.microphone import Microphone, microphone_table
from harken.cli.options import (
    WORD_FORMATS,
    Command,
    dataclass_options,
    load_model_with_status,
    model_options,
    options_from,
    single_option,
)
from harken.cli.outputs import open_transcript, open_wav
from harken.cli.screen import Screen, format_time, format_timed_text, write_stdout
from harken.cli.sources import PCM_FORMATS, AudioReader, ContainerSource, LiveSource, PcmSource, RealTimeSource
from harken.contract import Floats
from harken.errors import AudioError, OutputError
from harken.formats import FORMATS
from harken.results import Segment, Transcript
from harken.streaming import Event, FinalSegment, LiveSession, LoadChanged, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE


@dataclass
class LiveStats:
    """The counts of a session.

    Attributes
    ----------
    samples : int
        Number of samples so far, at 16 kHz.
    compute_s : float
        Time that the session computed.
    """

    samples: int = 0
    compute_s: float = 0.0

    @property
    def audio_s(self) -> float:
        """Duration of the audio so far."""
        return self.samples / SAMPLE_RATE


@dataclass(kw_only=True)
class LiveRunner:
    """The loop that feeds audio to a session, shows its events and writes its files.

    Parameters
    ----------
    session : LiveSession
    renderer : EventRenderer
    stats : LiveStats
    write_samples, write_segment : callable
        Called with every block of samples, and with every final segment.
    show_warnings : bool
        Report lost audio and changes of load.
    """

    session: LiveSession
    renderer: EventRenderer
    stats: LiveStats
    write_samples: Callable[[Floats], None]
    write_segment: Callable[[Segment], None]
    show_warnings: bool = True

    def run(self, reader: AudioReader) -> AudioError | OutputError | None:
        """Transcribe the audio to its end.

        Returns
        -------
        AudioError or OutputError or None
            The error that ended the audio early; the text until then has been shown.
        """
        failure: AudioError | OutputError | None = None
        loss_reported = False
        try:
            for block in reader:
                self.stats.samples += len(block)
                self.write_samples(block)
                self._run_and_render(partial(self.session.feed, block))
                if reader.lost_s and not loss_reported:
                    loss_reported = True
                    self._warn("this machine was too busy to read all audio; silence replaces the lost part")
        except (AudioError, OutputError) as error:
            failure = error
        self._run_and_render(self.session.close)
        return failure

    def _run_and_render(self, compute: Callable[[], list[Event]]) -> None:
        """Run a step of the session and show its events."""
        began_s = perf_counter()
        events = compute()
        self.stats.compute_s += perf_counter() - began_s
        for event in events:
            self.renderer.show(event)
            match event:
                case FinalSegment():
                    self.write_segment(event.segment)
                case LoadChanged():
                    self._warn(f"{event.lag_s:.1f} s behind: {event.detail}")

    def _warn(self, text: str) -> None:
        if self.show_warnings:
            self.renderer.write_stderr(f"harken: {text}")


# Options without a meaning for a stream, which is a single recording that is always split at pauses.
OFFLINE_ONLY = ("batch_size", "clip_timestamps", "prefix", "vad")

input_option = partial(single_option, section="Audio")
output_option = partial(single_option, section="Output")


def _parse_transcript_path(name: str | None) -> tuple[Path, str] | None:
    """Return the path of a transcript and the format that its name ends with."""
    if name is None:
        return None
    format_names = [format_name for format_name in FORMATS if name.endswith(f".{format_name}")]
    if not format_names:
        endings = ", ".join(f".{format_name}" for format_name in FORMATS)
        raise click.BadParameter(f"{name!r}: allowed endings are {endings}")
    return Path(name), max(format_names, key=len)


@click.command("listen", cls=Command, epilog=EPILOGUE)
@click.argument("file", metavar="[FILE]", required=False)
@input_option("--microphone", metavar="NAME|NUMBER", help="Microphone to use; by default that of the system.")
@input_option("--list-microphones", is_flag=True, help="List the microphones and exit.")
@input_option(
    "--pace",
    type=click.Choice(["fast", "real"]),
    default="fast",
    help="Read a file as fast as it can be transcribed, or in real time, as if it were spoken now.",
)
@input_option("--pcm", is_flag=True, help="Standard input holds raw samples, without a header.")
@input_option("--pcm-format", type=click.Choice([*PCM_FORMATS]), default="s16le", help="Type of the samples.")
@input_option(
    "--pcm-rate",
    type=click.IntRange(1_000, 768_000),
    default=SAMPLE_RATE,
    metavar="HZ",
    help="Samples per second.",
)
@input_option(
    "--pcm-channels",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    help="Number of interleaved channels; they are mixed.",
)
@output_option(
    "--json", "as_json", is_flag=True, help="Print every event as JSON, one object per line, with its times."
)
@output_option("--times/--no-times", default=False, help="Begin lines with their times.")
@output_option(
    *("-o", "--output", "transcript"),
    metavar="FILE",
    callback=lambda context, option, name: _parse_transcript_path(name),
    help=f"Write a transcript too, in the format that its name ends with: {', '.join(FORMATS)}.",
)
@output_option("--record", metavar="FILE", help="Write the audio to a WAV file, 16 kHz.")
@output_option("-q", "--quiet", is_flag=True, help="Print only errors and the text.")
@output_option(
    "-v", "--verbose", is_flag=True, help="Report the engine and the delay, and at the end the speed."
)
@dataclass_options(StreamOptions)
@model_options
@dataclass_options(TranscribeOptions, exclude=OFFLINE_ONLY)
def command(file: str | None, **params: Any) -> int:
    """Transcribe speech while it is spoken.

    FILE is a recording of any kind, or - for standard input, which with --pcm holds raw samples. Without FILE the
    microphone is used if standard input is a terminal, else standard input.

    On a terminal the words of an utterance appear as they are spoken, dim as long as they may change, and become
    lines when it is over. Elsewhere each segment is a line as soon as it is final, or with --json each event.

    Ctrl-C ends the audio, and the audio until then is transcribed to its end. A second Ctrl-C stops at once.
    """
    if params["list_microphones"]:
        write_stdout(microphone_table())
        return 0
    options = _transcribe_options(params)
    stream_options = options_from(StreamOptions, params)
    _check_output_files(file, params)
    source = _open_source(file, params)
    stats = LiveStats()
    with ExitStack() as stack:
        # Opened first, so that a file that cannot be written fails before anybody speaks.
        write_samples, write_segment = _open_outputs(stack, params, stats, None if file == STDIN else file)
        recognizer, session = _open_session(params, options, stream_options, live=source.live)
        renderer = stack.enter_context(closing(_make_renderer(params)))
        if params["verbose"]:
            renderer.write_stderr(f"{recognizer!r}\nwords are {session.plan.bound}")
        runner = LiveRunner(
            session=session,
            renderer=renderer,
            stats=stats,
            write_samples=write_samples,
            write_segment=write_segment,
            show_warnings=not params["quiet"],
        )
        reader = stack.enter_context(AudioReader(source))
        if isinstance(source, Microphone) and not params["quiet"]:
            renderer.write_stderr(f"listening to {source.name}; Ctrl-C ends")
        failure = runner.run(reader)
        if params["verbose"]:
            renderer.write_stderr(_speed_summary(source, stats))
    if reader.stop:
        written = ", ".join(_output_files(params))
        saved = f"; what was done is in {written}" if written else ""
        raise Stop(reader.stop.code, f"{reader.stop} at {format_time(stats.audio_s)}{saved}")
    if failure:
        raise failure
    return 0


def _transcribe_options(params: dict[str, Any]) -> TranscribeOptions:
    """Return the options of transcription, with word timestamps if the transcript shows words."""
    options = options_from(TranscribeOptions, params)
    shows_words = params["transcript"] and params["transcript"][1] in WORD_FORMATS
    return replace(options, word_timestamps=True) if shows_words else options


def _open_source(file: str | None, params: dict[str, Any]) -> LiveSource:
    """Return the source of the audio; errors that show without reading it are raised here."""
    wants_microphone = params["microphone"] is not None
    if file is None and not wants_microphone and (params["pcm"] or not (sys.stdin and sys.stdin.isatty())):
        file = STDIN
    if file is None:
        return Microphone(params["microphone"])
    if wants_microphone:
        raise click.UsageError("--microphone and FILE exclude each other")
    if params["pcm"] and file != STDIN:
        raise click.UsageError(f"--pcm is for standard input: harken listen - --pcm < {file}")
    source: LiveSource = ContainerSource(file)
    if params["pcm"]:
        source = PcmSource(params["pcm_format"], params["pcm_rate"], params["pcm_channels"])
    return RealTimeSource(source) if params["pace"] == "real" else source


def _output_files(params: dict[str, Any]) -> list[str]:
    """Return the names of the files to write."""
    transcript = str(params["transcript"][0]) if params["transcript"] else None
    return [name for name in (params["record"], transcript) if name]


def _check_output_files(file: str | None, params: dict[str, Any]) -> None:
    names = [*([file] if file else []), *_output_files(params)]
    for one, other in combinations(names, 2):
        if os.path.realpath(one) == os.path.realpath(other):
            raise click.UsageError(f"{other} would be overwritten")


def _open_outputs(
    stack: ExitStack, params: dict[str, Any], stats: LiveStats, file: str | None
) -> tuple[Callable[[Floats], None], Callable[[Segment], None]]:
    """Open the output files; return the callables that write samples and segments to them."""
    write_samples: Callable[[Floats], None] = _discard
    write_segment: Callable[[Segment], None] = _discard
    if params["record"]:
        write_samples = stack.enter_context(open_wav(Path(params["record"])))
    if params["transcript"]:
        path, format_name = params["transcript"]
        recording_path = params["record"] or file
        make_transcript = partial(_make_transcript, params, stats)
        write_segment = stack.enter_context(
            open_transcript(
                path, format_name, Path(recording_path) if recording_path else None, make_transcript
            )
        )
    return write_samples, write_segment


def _discard(item: object) -> None:
    """Write nothing."""


def _make_transcript(params: dict[str, Any], stats: LiveStats, segments: tuple[Segment, ...]) -> Transcript:
    languages = [segment.language for segment in segments if segment.language]
    return Transcript(
        segments=segments,
        language=languages[-1] if languages else params["language"] or "en",
        duration_s=stats.audio_s,
        model=params["model"],
        task=params["task"],
    )


def _open_session(
    params: dict[str, Any], options: TranscribeOptions, stream_options: StreamOptions, *, live: bool
) -> tuple[Recognizer, LiveSession]:
    """Load the model and open a session; a file that is not paced counts computing as taking no time."""
    with Screen(not params["quiet"]) as screen:
        recognizer = load_model_with_status(screen, params)
        screen.show_status("measuring this machine ...")
        try:
            clock = perf_counter if live else None
            return recognizer, recognizer.stream(options, stream_options=stream_options, clock=clock)
        finally:
            screen.show_status("")


def _make_renderer(params: dict[str, Any]) -> EventRenderer:
    """Return the renderer of the events: captions on a terminal, else lines of text or JSON."""

    def format_segment(segment: Segment) -> str:
        text = segment.text.strip()
        return format_timed_text(segment.start_s, segment.end_s, text) if params["times"] else text

    if params["as_json"]:
        return LineRenderer(live_event_json)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return CaptionRenderer(format_segment)
    return LineRenderer(
        lambda event: f"{format_segment(event.segment)}\n" if isinstance(event, FinalSegment) else ""
    )


def _speed_summary(source: LiveSource, stats: LiveStats) -> str:
    real_time_factor = stats.compute_s / stats.audio_s if stats.samples else 0.0
    lost = f", {source.lost_s:.2f} s of it lost" if source.lost_s else ""
    return (
        f"{source.name}: {format_time(stats.audio_s)} of audio{lost}, computed for {stats.compute_s:.2f} s, "
        f"{real_time_factor:.3f} of real time"
    )

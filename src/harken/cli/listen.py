"""``harken listen``: words on the screen while they are spoken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from functools import partial
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import click

from harken.api import Recognizer
from harken.cli.captions import CaptionRenderer, LineRenderer, live_event_json
from harken.cli.exits import EPILOGUE, Stop
from harken.cli.inputs import STDIN
from harken.cli.microphone import Microphone, microphone_table
from harken.cli.options import Command, dataclass_options, load_model, model_options, single_option
from harken.cli.outputs import open_transcript, open_wav
from harken.cli.screen import Screen, format_time, format_timed_text, write_stdout
from harken.cli.sources import PCM_FORMATS, AudioReader, ContainerSource, LiveSource, PcmSource, RealTimeSource
from harken.cli.transcribe import WORD_FORMATS
from harken.contract import Floats
from harken.errors import AudioError, OutputError
from harken.formats import FORMATS
from harken.results import Segment, Transcript
from harken.streaming import Event, FinalSegment, LiveSession, LoadChanged, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE


class EventRenderer(Protocol):
    """Where events appear."""

    def show(self, event: Event) -> None:
        """Show an event, if it is to be seen."""
        ...

    def write_stderr(self, text: str) -> None:
        """Say something else on standard error."""
        ...

    def close(self) -> None:
        """Leave what stands there."""
        ...


@dataclass
class LiveStats:
    """How much has been heard.

    Attributes
    ----------
    samples : int
        At 16 kHz.
    busy_s : float
        How long the session computed.
    """

    samples: int = 0
    compute_s: float = 0.0

    @property
    def audio_s(self) -> float:
        """Length of the sound so far."""
        return self.samples / SAMPLE_RATE


@dataclass(kw_only=True)
class LiveRunner:
    """What becomes of sound.

    Parameters
    ----------
    session : LiveSession
    face : Face
    heard : Heard
        Counts.
    keep_sound, keep_segment : callable
        Get all sound, and every final segment.
    warn : bool
        Whether to tell of sound that was lost, and of load.
    """

    session: LiveSession
    renderer: EventRenderer
    stats: LiveStats
    write_samples: Callable[[Floats], None]
    write_segment: Callable[[Segment], None]
    show_warnings: bool = True

    def run(self, reader: AudioReader) -> AudioError | OutputError | None:
        """Hear sound until there is no more, then what is left to say of it.

        Returns
        -------
        AudioError or OutputError or None
            What ended the sound before its end; what was heard until then has been shown.
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
                    self._warn("some sound came faster than this machine took it in; silence stands in for it")
        except (AudioError, OutputError) as error:
            failure = error
        self._run_and_render(self.session.close)
        return failure

    def _run_and_render(self, compute: Callable[[], list[Event]]) -> None:
        """Show what comes of some work."""
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


# What a stream has no use for: it is one recording that goes on, and where it holds speech decides where it is cut.
OFFLINE_ONLY = ("batch_size", "clip_timestamps", "prefix", "vad")

input_option = partial(single_option, section="Sound")
output_option = partial(single_option, section="Output")


def _parse_transcript_path(name: str | None) -> tuple[Path, str] | None:
    """Where a transcript is to be written, and the form that its name ends with."""
    if name is None:
        return None
    format_names = [form for form in FORMATS if name.endswith(f".{form}")]
    if not format_names:
        raise click.BadParameter(f"{name!r}: allowed endings are {', '.join(f'.{form}' for form in FORMATS)}")
    return Path(name), max(format_names, key=len)


@click.command("listen", cls=Command, epilog=EPILOGUE)
@click.argument("file", metavar="[FILE]", required=False)
@input_option("--microphone", metavar="NAME|NUMBER", help="Which microphone; by default that of the system.")
@input_option("--list-microphones", is_flag=True, help="Show which there are, and end.")
@input_option(
    "--pace",
    type=click.Choice(["fast", "real"]),
    default="fast",
    help="Take in a file as fast as it can be heard, or in real time, as if it were spoken now.",
)
@input_option("--pcm", is_flag=True, help="Standard input holds samples and nothing else.")
@input_option("--pcm-format", type=click.Choice([*PCM_FORMATS]), default="s16le", help="What a sample is.")
@input_option(
    "--pcm-rate",
    type=click.IntRange(1_000, 768_000),
    default=SAMPLE_RATE,
    metavar="HZ",
    help="Samples a second.",
)
@input_option(
    "--pcm-channels",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    help="Channels, sample by sample; they are mixed.",
)
@output_option(
    "--json", "as_json", is_flag=True, help="Every event as JSON, one object a line, with its times."
)
@output_option("--times/--no-times", default=False, help="Whether lines begin with their times.")
@output_option(
    *("-o", "--output", "transcript"),
    metavar="FILE",
    callback=lambda context, option, name: _parse_transcript_path(name),
    help=f"Write a transcript too, in the form that its name ends with: {', '.join(FORMATS)}.",
)
@output_option("--record", metavar="FILE", help="Write what was heard to a WAV file of 16 kHz.")
@output_option("-q", "--quiet", is_flag=True, help="Only errors, and what is said.")
@output_option("-v", "--verbose", is_flag=True, help="Say what computes and how, and at the end how fast.")
@dataclass_options(StreamOptions)
@model_options
@dataclass_options(TranscribeOptions, exclude=OFFLINE_ONLY)
def command(file: str | None, **params: Any) -> int:
    """Show what is said while it is said.

    FILE is a recording of any kind, or - for standard input, where --pcm says that raw samples come. Without it the
    microphone is heard, if standard input is a terminal, and else standard input.

    On a terminal the words of an utterance appear as they are spoken, dim as long as they may change, and become
    lines when it is over. Elsewhere there is a line a segment as soon as it is final, or with --json every event.

    Ctrl-C ends the sound: what was heard until then is transcribed to its end. A second one ends at once.
    """
    if params["list_microphones"]:
        write_stdout(microphone_table())
        return 0
    options = _session_options(params)
    _check_output_files(file, params)
    source = _open_source(file, params)
    stats = LiveStats()
    with ExitStack() as stack:
        # Opened first: what cannot be written shows before anything is said.
        write_samples, write_segment = _open_outputs(stack, params, stats, None if file == STDIN else file)
        recognizer, session = _open_session(params, options, live=source.live)
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
        saved = f"; what was heard is in {written}" if written else ""
        raise Stop(reader.stop.code, f"{reader.stop} at {format_time(stats.audio_s)}{saved}")
    if failure:
        raise failure
    return 0


def _session_options(params: dict[str, Any]) -> dict[str, Any]:
    """What was chosen about the session: checked before a model is loaded."""
    if params["transcript"] and params["transcript"][1] in WORD_FORMATS:
        params["word_timestamps"] = True
    options_classes = (StreamOptions, TranscribeOptions)
    options = [
        {field.name: params[field.name] for field in fields(kind) if field.name in params}
        for kind in options_classes
    ]
    for kind, chosen in zip(options_classes, options, strict=True):
        kind(**chosen)
    return options[0] | options[1]


def _open_source(file: str | None, params: dict[str, Any]) -> LiveSource:
    """What is listened to; whatever can be told to be wrong with it is told here."""
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
    """Files that are written."""
    transcript = str(params["transcript"][0]) if params["transcript"] else None
    return [name for name in (params["record"], transcript) if name]


def _check_output_files(file: str | None, params: dict[str, Any]) -> None:
    names = [*([file] if file else []), *_output_files(params)]
    for one, other in combinations(names, 2):
        if os.path.realpath(one) == os.path.realpath(other):
            raise click.UsageError(f"{other} would be written over")


def _open_outputs(
    stack: ExitStack, params: dict[str, Any], stats: LiveStats, file: str | None
) -> tuple[Callable[[Floats], None], Callable[[Segment], None]]:
    """Open the files that were asked for; where sound and segments go."""
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
    """What is not kept."""


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
    params: dict[str, Any], options: dict[str, Any], *, live: bool
) -> tuple[Recognizer, LiveSession]:
    """Load the model and begin; what need not keep up with anything is heard as if computing took no time."""
    if params["quiet"]:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Screen(not params["quiet"]) as screen:
        try:
            screen.show_status("loading the model ...")
            recognizer = load_model(params)
            screen.show_status("measuring this machine ...")
            return recognizer, recognizer.stream(**options, clock=perf_counter if live else None)
        finally:
            screen.show_status("")


def _make_renderer(params: dict[str, Any]) -> EventRenderer:
    """Where events appear: on a terminal in place."""

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
        f"{source.name}: {format_time(stats.audio_s)} heard{lost}, computed for {stats.compute_s:.2f} s, "
        f"{real_time_factor:.3f} of real time"
    )

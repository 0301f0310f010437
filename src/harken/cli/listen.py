"""``harken listen``: transcribes live audio, with captions on the screen while somebody speaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

from harken.api import Recognizer
from harken.cli.captions import CaptionDisplay, LiveDisplay
from harken.cli.exits import Stop
from harken.cli.inputs import STDIN, refuse_overwriting
from harken.cli.model_options import (
    chosen_files,
    live_speaker_options,
    load_diarizer_with_status,
    load_model_with_status,
    model_options,
)
from harken.cli.options import (
    TURNS,
    Command,
    ResultPath,
    dataclass_options,
    is_given,
    single_option,
    without_flag,
)
from harken.cli.outputs import Outputs
from harken.cli.signals import saving_on_stop
from harken.cli.sources import (
    PCM_FORMATS,
    AudioReader,
    ContainerSource,
    LiveSource,
    Microphone,
    PcmSource,
    RealTimeSource,
    microphone_table,
)
from harken.cli.terminal import Screen, format_time, format_timed_text, is_terminal, no_speech, write_stdout
from harken.errors import AudioError, OutputError
from harken.formats import FORMATS, WORD_FORMATS, dump_json
from harken.manifests import RECORDING_SUFFIXES
from harken.option_types import options_from
from harken.streaming import Event, FinalSegment, LiveSession, LoadChanged, SpeechStarted, StreamOptions
from harken.streaming.events import event_fields
from harken.transcribe import TranscribeOptions
from harken.transcribe.options import OFFLINE_ONLY
from harken.types import SAMPLE_RATE

input_option = partial(single_option, section="Audio")
pcm_option = partial(input_option, no_effect=without_flag("pcm"))
output_option = partial(single_option, section="Output")


def _parse_transcript_path(name: str) -> tuple[Path, str]:
    """Return the path of a transcript and the format that its name ends with."""
    format_names = [format_name for format_name in FORMATS if name.endswith(f".{format_name}")]
    if not format_names:
        endings = ", ".join(f".{format_name}" for format_name in FORMATS)
        raise click.BadParameter(f"{name!r}: allowed endings are {endings}")
    return Path(name), max(format_names, key=len)


@click.command("listen", cls=Command)
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
@pcm_option("--pcm-format", type=click.Choice([*PCM_FORMATS]), default="s16le", help="Type of the samples.")
@pcm_option(
    "--pcm-rate",
    type=click.IntRange(1_000, 768_000),
    default=SAMPLE_RATE,
    metavar="HZ",
    help="Samples per second.",
)
@pcm_option(
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
    type=_parse_transcript_path,
    help=f"Write a transcript too, in the format that its name ends with: {', '.join(FORMATS)}.",
)
@output_option("--record", metavar="FILE", type=ResultPath(), help="Write the audio to a WAV file, 16 kHz.")
@output_option("-q", "--quiet", is_flag=True, help="Print only errors and the text.")
@output_option(
    "-v", "--verbose", is_flag=True, help="Report the engine and the delay, and at the end the speed."
)
@live_speaker_options
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
    _check_options(file, params)
    source = _open_source(file, params)
    # Opened first, so that a file that cannot be written fails before anybody speaks.
    with Outputs(params, None if file == STDIN else file) as outputs, saving_on_stop(outputs.save):
        recognizer, session = _open_session(params, options, stream_options, live=source.live)
        if outputs.transcript:
            outputs.transcript.encode = recognizer.tokenizer.encode
        with (
            closing(_make_display(params)) as display,
            AudioReader(source, outputs.add_samples) as reader,
        ):
            if not params["quiet"]:
                for line in outputs.others():
                    display.tell(f"harken: {line}")
            if params["verbose"]:
                display.tell(f"{recognizer!r}\nwords are {session.plan.bound}")
            if isinstance(source, Microphone) and not params["quiet"]:
                display.tell(f"listening to {source.name}; Ctrl-C ends")
            failure, compute_s = _transcribe(session, reader, display, outputs, warns=not params["quiet"])
            outputs.finish(session_ended=True)
            if params["verbose"]:
                display.tell(_speed_summary(source, outputs.audio_s, compute_s))
    _raise_for_end(reader.stop, failure, display, outputs)
    return 0


def _transcribe(
    session: LiveSession, reader: AudioReader, display: LiveDisplay, outputs: Outputs, *, warns: bool
) -> tuple[AudioError | None, float]:
    """Transcribe the audio to its end, or until nothing can take the text any more.

    Return the error that ended the audio early, if one did, and the time that the session computed; the text until then
    has been shown. If it `warns`, lost audio, changes of load, and audio without any speech are told.
    """
    failure: AudioError | None = None
    compute_s = 0.0
    loss_told = has_speech = False
    peak = 0.0

    def warn(text: str) -> None:
        if warns:
            display.tell(f"harken: {text}")

    def run_and_show(step: Callable[[], list[Event]]) -> None:
        nonlocal compute_s, has_speech
        began_s = perf_counter()
        events = step()
        compute_s += perf_counter() - began_s
        for event in events:
            outputs.add_event(event)
            display.show(event)
            has_speech |= isinstance(event, SpeechStarted)
            if isinstance(event, LoadChanged):
                busy = "this machine is busy or slow; starting with"
                state = f"{event.lag_s:.1f} s behind:" if event.lag_s else busy
                warn(f"{state} {event.detail}")

    try:
        for block in reader:
            outputs.samples += len(block)
            peak = max(peak, float(np.abs(block).max(initial=0)))
            run_and_show(partial(session.feed, block))
            if reader.source.lost_s and not loss_told:
                loss_told = True
                warn("this machine was too busy to read all audio; silence replaces the lost part")
            for line in outputs.news():
                display.tell(f"harken: {line}")
            if display.problem and not outputs.writable:
                break
    except AudioError as error:
        failure = error
    run_and_show(session.close)
    if outputs.samples and not has_speech:
        warn(f"{reader.source.name}: {no_speech(outputs.audio_s, peak, live=True)}")
    return failure, compute_s


def _raise_for_end(
    stop: Stop | None, failure: AudioError | None, display: LiveDisplay, outputs: Outputs
) -> None:
    """Raise what ended a session, if it was not the end of its audio; a result that is not whole goes first."""
    if problems := [*filter(None, [display.problem]), *outputs.problems()]:
        raise OutputError("; ".join([*problems, *(str(end) for end in (stop, failure) if end)]))
    if stop:
        raise Stop(stop.code, f"{stop} at {format_time(outputs.audio_s)}{outputs.what_was_done()}")
    if failure:
        raise failure


def _transcribe_options(params: dict[str, Any]) -> TranscribeOptions:
    """Return the options of transcription, with word timestamps if the transcript shows words."""
    options = options_from(TranscribeOptions, params)
    shows_words = params["transcript"] and params["transcript"][1] in WORD_FORMATS
    return replace(options, word_timestamps=True) if shows_words else options


def _open_source(file: str | None, params: dict[str, Any]) -> LiveSource:
    """Return the source of the audio; errors that show without reading it are raised here."""
    wants_microphone = params["microphone"] is not None
    if file is None and not wants_microphone and (params["pcm"] or not is_terminal(sys.stdin)):
        file = STDIN
    if file is None:
        if is_given("pace"):
            raise click.UsageError("--pace is for a recording; a microphone is in real time")
        return Microphone(params["microphone"])
    if params["pcm"] and file != STDIN:
        raise click.UsageError(f"--pcm is for standard input: harken listen - --pcm < {file}")
    source: LiveSource = ContainerSource(file)
    if params["pcm"]:
        source = PcmSource(params["pcm_format"], params["pcm_rate"], params["pcm_channels"])
    return RealTimeSource(source) if params["pace"] == "real" else source


def _check_options(file: str | None, params: dict[str, Any]) -> None:
    """Refuse options that would be ignored, and files that would be overwritten or stay empty."""
    transcript, format_name = params["transcript"] or (None, "")
    for refused, message in (
        (file == "", "FILE '': allowed is a recording, or - for standard input"),
        (params["quiet"] and params["verbose"], "--quiet and --verbose exclude each other"),
        (params["as_json"] and params["times"], "--times is for lines of text; --json has the times always"),
        (params["microphone"] is not None and params["pcm"], "--microphone and --pcm exclude each other"),
        (params["microphone"] is not None and file is not None, "--microphone and FILE exclude each other"),
        (
            Path(params["record"] or "").suffix.lower() in RECORDING_SUFFIXES - {".wav"},
            f"--record {params['record']}: the format is WAV; allowed is a name that ends with .wav",
        ),
        (
            format_name == TURNS and not params["speakers"],
            f"--output {transcript} has turns of speakers: give --speakers, too",
        ),
    ):
        if refused:
            raise click.UsageError(message)
    targets = [path for path in (params["record"], transcript) if path]
    refuse_overwriting(targets, [file or STDIN, *chosen_files(params)])


def _open_session(
    params: dict[str, Any], options: TranscribeOptions, stream_options: StreamOptions, *, live: bool
) -> tuple[Recognizer, LiveSession]:
    """Load the model and open a session; a file that is not paced counts computing as taking no time."""
    with Screen(not params["quiet"]) as screen:
        recognizer = load_model_with_status(screen, params)
        diarizer = load_diarizer_with_status(screen, params)
        with screen.status("measuring this machine ..."):
            session = recognizer.stream(
                options,
                stream_options=stream_options,
                clock=perf_counter if live else None,
                diarizer=diarizer,
                speaker_delay=params["speaker_delay"],
            )
        return recognizer, session


def _make_display(params: dict[str, Any]) -> LiveDisplay:
    """Return the display of the events: captions on a terminal, else lines of text or JSON."""
    speaker: tuple[str, ...] = ()

    def format_final(event: Event) -> str:
        """Return the line of a final segment, with its speaker where that is not the one of the line before."""
        nonlocal speaker
        if not isinstance(event, FinalSegment):
            return ""
        segment = event.segment
        before, speaker = speaker, segment.speakers[:1]
        text = f"{speaker[0]}: " if speaker and speaker != before else ""
        text += segment.text.strip()
        return (format_timed_text(segment.start_s, segment.end_s, text) if params["times"] else text) + "\n"

    if params["as_json"]:
        return LiveDisplay(lambda event: dump_json(event_fields(event)) + "\n")
    on_terminal = is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
    return CaptionDisplay(format_final) if on_terminal else LiveDisplay(format_final)


def _speed_summary(source: LiveSource, audio_s: float, compute_s: float) -> str:
    real_time_factor = compute_s / audio_s if audio_s else 0.0
    lost = f", {source.lost_s:.2f} s of it lost" if source.lost_s else ""
    return (
        f"{source.name}: {format_time(audio_s)} of audio{lost}, computed for {compute_s:.2f} s, "
        f"{real_time_factor:.3f} of real time"
    )

"""``harken bench``: how long transcribing takes, what drafting brings, how soon a live session has words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from harken.api import Recognizer
from harken.atomic import open_atomic
from harken.backend_factory import AUTO
from harken.cli.bench_streaming import live_stream_options, measure_live
from harken.cli.exits import EPILOGUE, SOME_FAILED, Stop
from harken.cli.inputs import STDIN, expand_patterns, recording_duration_s
from harken.cli.options import (
    Command,
    Option,
    dataclass_options,
    decoding_options,
    load_model,
    model_options,
    single_option,
    transcribe_options_from,
)
from harken.cli.screen import Screen, format_table, format_time, pluralize
from harken.decoding import SpeculativeDecoder
from harken.decoding.speculation import NEAR_TIE
from harken.errors import BackendUnavailable
from harken.evaluation import (
    Divergence,
    Entry,
    ErrorRate,
    EvalRecording,
    Failure,
    Round,
    SpeedSummary,
    divergences,
    failures,
    provenance,
    read_manifests,
    run_rounds,
    summarise_speed,
)
from harken.evaluation.error_rate import normalizer
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

PLAIN, SPECULATIVE = "plain", "speculative"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRow:
    """One line of the table.

    Parameters
    ----------
    label : str
    value : callable
        Of a timing; None where there is none.
    digits : int
        Behind the decimal point.
    drafts : bool
        Whether it means something only where something drafts.
    ratio : str
        Name of the ratio of plain to speculative; empty where it says nothing.
    """

    label: str
    value: Callable[[SpeedSummary], float | None]
    digits: int = 0
    speculative_only: bool = False
    ratio_key: str = ""

    def cell(self, timing: SpeedSummary) -> str:
        """Its value as text."""
        value = self.value(timing)
        return "-" if value is None else f"{value:.{self.digits}f}"


TIMING_ROWS = (
    TimingRow(label="decoding, s", value=lambda its: its.stats.decode_s, digits=2, ratio_key="decode"),
    TimingRow(
        label="of that drafting, s", value=lambda its: its.stats.draft_s, digits=2, speculative_only=True
    ),
    TimingRow(label="encoding, s", value=lambda its: its.stats.encode_s, digits=2),
    TimingRow(label="end to end, s", value=lambda its: its.wall_s, digits=2, ratio_key="wall"),
    TimingRow(label="times real time", value=lambda its: its.times_real_time, digits=1),
    TimingRow(label="forward passes", value=lambda its: its.stats.forwards, ratio_key="forwards"),
    TimingRow(label="tokens a forward pass", value=lambda its: its.stats.tokens_per_forward, digits=2),
    TimingRow(label="drafted tokens", value=lambda its: its.stats.drafted, speculative_only=True),
    TimingRow(label="accepted tokens", value=lambda its: its.stats.accepted, speculative_only=True),
    TimingRow(
        label="acceptance, %",
        value=lambda its: _percent(its.stats.acceptance_rate),
        digits=1,
        speculative_only=True,
    ),
    TimingRow(
        label="forward passes of the draft", value=lambda its: its.stats.draft_forwards, speculative_only=True
    ),
    TimingRow(label="steps at rest", value=lambda its: its.stats.skipped_steps, speculative_only=True),
    TimingRow(
        label="WER, %",
        value=lambda its: _error_percent(its.evaluation.wer if its.evaluation else None),
        digits=2,
    ),
    TimingRow(
        label="CER, %",
        value=lambda its: _error_percent(its.evaluation.cer if its.evaluation else None),
        digits=2,
    ),
)
BEAM_NOTE = (
    "Beam search goes without drafts, since its hypotheses part at every step and a draft follows one of them: "
    "{} decoded plainly.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What was measured.

    Parameters
    ----------
    by : mapping
        What was chosen to compute with.
    recognizer : Recognizer
    repeats : int
    timings : mapping of str to Timing
        Of `PLAIN`, `SPECULATIVE`, or both in this order.
    partings : tuple of Parting
    failures : tuple of Failure
    complete : bool
        Whether all recordings were done.
    """

    provenance: Mapping[str, Any]
    recognizer: Recognizer
    repeats: int
    timings: Mapping[str, SpeedSummary]
    divergences: tuple[Divergence, ...]
    failures: tuple[Failure, ...]
    complete: bool

    @property
    def recording_count(self) -> int:
        """How many were read."""
        return max(len(timing.results) for timing in self.timings.values())

    def table(self) -> str:
        """What a person reads: who computed, times and counts, and whether the same was said."""
        first, *_ = self.timings.values()
        passes = "" if self.repeats == 1 else f", median of {self.repeats} passes"
        drafting = f"drafts: {self._draft_source}\n" if self._draft_source else ""
        return (
            f"{self.recognizer.model}, {self.recognizer.backend.capabilities.detail}\n{drafting}"
            f"{pluralize(self.recording_count, 'recording')}: {first.audio_s:.1f} s of sound{passes}\n"
            f"{format_table(self._rows())}{self._divergence_summary()}{self._footnotes()}"
        )

    def report(self) -> dict[str, Any]:
        """Everything, as `json.dumps` takes it; docs/speculation.md lists the keys."""
        return {
            "by": dict(self.provenance),
            "engine": self.recognizer.backend.capabilities.detail,
            "draft": self._draft_source,
            "complete": self.complete,
            "repeats": self.repeats,
            **{name: _timing_json(its) for name, its in self.timings.items()},
            "ratios": {
                row.ratio_key: ratio for row in TIMING_ROWS if row.ratio_key and (ratio := self._ratio(row))
            },
            "divergences": [_divergence_json(divergence) for divergence in self.divergences],
            "recordings": self._recording_texts(),
            "failed": [{"audio": its.entry.name, "reason": its.reason} for its in self.failures],
        }

    @property
    def _draft_source(self) -> str | None:
        """What drafts, in words."""
        return _describe_draft_source(self.recognizer.speculator) if self.recognizer.speculator else None

    def _rows(self) -> Iterator[tuple[str, ...]]:
        both = len(self.timings) == 2
        if both:
            yield ("", *self.timings, "ratio")
        for row in TIMING_ROWS:
            cells = [
                "-" if row.speculative_only and name == PLAIN else row.cell(timing)
                for name, timing in self.timings.items()
            ]
            if any(cell != "-" for cell in cells):
                ratio = self._ratio(row)
                yield (row.label, *cells, *([f"{ratio:.2f}" if ratio else ""] if both else []))

    def _ratio(self, row: TimingRow) -> float | None:
        """How many times as much the plain engine takes."""
        if not row.ratio_key or len(self.timings) < 2:
            return None
        plain, speculative = (row.value(timing) for timing in self.timings.values())
        return plain / speculative if plain and speculative else None

    def _divergence_summary(self) -> str:
        """Whether both engines said the same, and where not, the first token that differs."""
        if len(self.timings) < 2:
            return ""
        if not self.divergences:
            return f"The tokens are the same in {pluralize(self.recording_count, 'recording')}.\n"
        texts = sum(not its.same_text for its in self.divergences)
        share = f"{len(self.divergences)} of {pluralize(self.recording_count, 'recording')}"
        lines = [f"The tokens differ in {share}, the text in {texts}; the first difference of each:\n"]
        for divergence in self.divergences:
            one, other = (
                "the end" if token is None else f'"{self.recognizer.tokenizer.describe_token(token)}"'
                for token in divergence.tokens
            )
            lines.append(
                f"  {divergence.entry.name}: window at {format_time(divergence.start_s)}, token {divergence.index}: "
                f"{one}, with drafts {other}\n"
            )
        return "".join(lines)

    def _footnotes(self) -> str:
        stats = [*self.timings.values()][-1].stats
        ties = stats.near_ties
        notes = (
            f"Near ties: {pluralize(len(ties), 'token')} verified by a margin below {NEAR_TIE} in log-probability, "
            f"the least {min(ties):.6f}.\n"
            if ties
            else "",
            BEAM_NOTE.format(pluralize(stats.undrafted_windows, "window")) if stats.undrafted_windows else "",
        )
        return "".join(notes)

    def _recording_texts(self) -> list[dict[str, Any]]:
        """What each engine heard in each recording."""
        texts: dict[str, dict[str, Any]] = {}
        for name, timing in self.timings.items():
            for run in timing.results:
                hypothesis = run.hypothesis
                row = {"audio": run.entry.name, "seconds": hypothesis.seconds, "language": hypothesis.language}
                texts.setdefault(run.entry.name, row)[name] = hypothesis.text
        return [*texts.values()]


def _describe_draft_source(speculator: SpeculativeDecoder) -> str:
    assistant = speculator.assistant
    if assistant is None:
        return "n-grams of the text so far and the prompt"
    dims = assistant.backend.dims
    encoder = "the model's encoder" if assistant.shares_encoder else "an encoder of its own"
    return f"a decoder of {pluralize(dims.n_text_layer, 'layer')}, {dims.n_text_state} wide, with {encoder}"


def _divergence_json(divergence: Divergence) -> dict[str, Any]:
    return {
        "audio": divergence.entry.name,
        "start_s": divergence.start_s,
        "index": divergence.index,
        "same_text": divergence.same_text,
        **dict(zip((PLAIN, SPECULATIVE), divergence.tokens, strict=True)),
    }


def _timing_json(timing: SpeedSummary) -> dict[str, Any]:
    scores = timing.evaluation
    return {
        "wall_s": timing.wall_s,
        "audio_s": timing.audio_s,
        "times_real_time": timing.times_real_time,
        **asdict(timing.stats),
        "acceptance_rate": timing.stats.acceptance_rate,
        "tokens_per_forward": timing.stats.tokens_per_forward,
        "wer": scores.wer.rate if scores and scores.wer else None,
        "cer": scores.cer.rate if scores and scores.cer else None,
    }


def _error_percent(error: ErrorRate | None) -> float | None:
    return _percent(error.rate) if error else None


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


bench_option = partial(single_option, section="Measuring")


@click.command("bench", cls=Command, epilog=EPILOGUE)
@click.argument("recordings", metavar="FILE|MANIFEST...", nargs=-1, required=True)
@bench_option(
    "--speculative",
    is_flag=True,
    help="Decode with and without drafts, in turns; what drafts is --assistant, by default auto.",
)
@bench_option(
    "--streaming",
    is_flag=True,
    help="Hear everything as live streams in simulated real time; --delay and --finals may name several.",
)
@bench_option(
    "--join",
    type=click.FloatRange(0),
    metavar="S",
    help="With --streaming, join the recordings of a speaker to one stream, S seconds of silence between them.",
)
@bench_option(
    "--block-s",
    type=click.FloatRange(0.001, 60),
    default=0.02,
    metavar="S",
    help="With --streaming, how much sound is fed at a time.",
)
@bench_option(
    "--one-core",
    is_flag=True,
    help="With --streaming, let the time of all processors together pass, whatever else the machine does.",
)
@bench_option("--repeat", type=click.IntRange(1), default=3, metavar="N", help="Passes; the median counts.")
@bench_option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Only N recordings of each manifest, spread evenly over it.",
)
@bench_option("--json", "json_file", metavar="FILE", help="Write everything to a file as one JSON object.")
@bench_option("--progress/--no-progress", default=True, help="Whether a terminal shows a progress bar.")
@dataclass_options(StreamOptions)
@model_options
@decoding_options
def command(recordings: Sequence[str], json_file: str | None, **params: Any) -> int:
    """Measure how long transcribing takes.

    FILE is a recording, MANIFEST a file of JSON lines as 'harken eval' takes it, or a folder that holds such a
    manifest.jsonl: then errors are counted too.

    With --speculative one loaded model decodes everything plainly and with drafts, in turns: times, passes of the
    decoder, how many drafted tokens it accepted, and whether it said the same.

    With --streaming live sessions hear it, in simulated real time: how long after they were spoken words are shown and
    committed, errors beside those of an offline pass, and cost. The options under Live are those of 'harken listen'.
    """
    options = transcribe_options_from(params)
    if params["speculative"] and params["streaming"]:
        raise click.UsageError("--speculative and --streaming exclude each other")
    if params["speculative"]:
        params["assistant"] = params["assistant"] or AUTO
    if params["streaming"]:
        live_stream_options(params)  # these two fail before the work
        normalizer(None)
    eval_recordings = _find_recordings(recordings, params["limit"])
    with ExitStack() as stack:
        # Opened first: what cannot be written shows before the work, not after it.
        write = stack.enter_context(open_atomic(Path(json_file))) if json_file else None
        screen = stack.enter_context(Screen(params["progress"]))
        measure = measure_live if params["streaming"] else _measure_offline
        recognizer = _load_with_status(screen, params)
        made_by = provenance(options, **_model_params(params))
        result, stop = measure(screen, recognizer, eval_recordings, options, params, made_by)
        for failure in result.failures:
            screen.write_stderr(f"harken: {failure.reason}")
        if write:
            write(json.dumps(result.report(), ensure_ascii=False, indent=1) + "\n")
        if result.recording_count:
            screen.write_stdout(result.table())
    if stop:
        raise Stop(stop.code, f"{stop} after {result.recording_count} of {len(eval_recordings)} recordings")
    return SOME_FAILED if result.failures else 0


def _measure_offline(
    screen: Screen,
    recognizer: Recognizer,
    eval_recordings: Sequence[EvalRecording],
    options: TranscribeOptions,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> tuple[BenchResult, Stop | None]:
    """Transcribe everything; how long it took, and what ended it early."""
    can_score = _can_score(eval_recordings, screen)
    engines = {SPECULATIVE if recognizer.speculator else PLAIN: recognizer}
    if params["speculative"]:
        plain = Recognizer(recognizer.backend, recognizer.tokenizer, recognizer.model)
        engines = {PLAIN: plain, **engines}
    rounds, stop = _run_rounds(screen, engines, eval_recordings, options, params["repeat"])
    result = BenchResult(
        provenance=provenance,
        recognizer=recognizer,
        repeats=params["repeat"],
        timings={name: summarise_speed(rounds, name, options, scored=can_score) for name in engines},
        divergences=divergences(rounds, *engines) if len(engines) == 2 else (),
        failures=failures(rounds),
        complete=stop is None,
    )
    return result, stop


def _find_recordings(names: Sequence[str], limit: int | None) -> list[EvalRecording]:
    """What is to be transcribed: recordings, and those of manifests.

    Raises
    ------
    AudioError, ManifestError
        If one is missing or cannot be read: before a model is loaded.
    """
    eval_recordings: list[EvalRecording] = []
    for name in expand_patterns(names):
        if name == STDIN:
            raise click.UsageError("standard input can be read only once; allowed are files and manifests")
        if Path(name).is_dir() or name.endswith(".jsonl"):
            entries = read_manifests([name], limit, note=partial(click.echo, err=True))
            eval_recordings += [EvalRecording(entry=entry, has_reference=True) for entry in entries]
        else:
            entry = Entry(name=name, path=Path(name), text="", seconds=recording_duration_s(name))
            eval_recordings.append(EvalRecording(entry=entry, has_reference=False))
    return eval_recordings


def _can_score(eval_recordings: Sequence[EvalRecording], screen: Screen) -> bool:
    """Whether errors are counted: where some text is known, and the extra is there; otherwise say how to get it."""
    if not any(recording.has_reference for recording in eval_recordings):
        return False
    try:
        normalizer(None)
    except BackendUnavailable as error:
        screen.write_stderr(f"harken: errors are not counted: {error}")
        return False
    return True


def _load_with_status(screen: Screen, params: dict[str, Any]) -> Recognizer:
    if not params["progress"]:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    screen.show_status("loading the model ...")
    try:
        return load_model(params)
    finally:
        screen.show_status("")


def _run_rounds(
    screen: Screen,
    engines: dict[str, Recognizer],
    eval_recordings: Sequence[EvalRecording],
    options: TranscribeOptions,
    repeats: int,
) -> tuple[list[Round], Stop | None]:
    """What every turn gave, and what ended them early."""
    rounds: list[Round] = []
    durations_s = [recording.entry.seconds for recording in eval_recordings]
    total_s = None if None in durations_s else sum(filter(None, durations_s))
    progress = screen.track(f"{len(eval_recordings)} recordings", total_s)
    done_s = 0.0
    try:
        for bench_round in run_rounds(engines, eval_recordings, options, repeats):
            rounds.append(bench_round)
            done_s += sum(sound.entry.seconds or 0.0 for sound in bench_round.recordings)
            progress(done_s, False)
    except Stop as stop:
        return rounds, stop
    return rounds, None


def _model_params(params: dict[str, Any]) -> dict[str, Any]:
    """What was chosen to compute with."""
    return {
        option.name: params[option.name]
        for option in command.params
        if isinstance(option, Option) and option.section == "Model" and option.name != "download"
    }

"""How timings look: engines side by side in a table, and as one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harken.api import Recognizer
from harken.cli.layout import format_table, format_time, pluralize
from harken.decoding import SpeculativeDecoder
from harken.decoding.speculation import NEAR_TIE
from harken.evaluation import Divergence, ErrorRate, Failure, SpeedSummary

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

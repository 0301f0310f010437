"""How timings look: engines side by side in a table, and as one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harken.api import Recognizer
from harken.cli.layout import aligned, counted, time
from harken.decoding import Speculator
from harken.decoding.speculation import NEAR_TIE
from harken.evaluation import ErrorRate, Failure, Parting, Timing

PLAIN, SPECULATIVE = "plain", "speculative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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
    value: Callable[[Timing], float | None]
    digits: int = 0
    drafts: bool = False
    ratio: str = ""

    def cell(self, timing: Timing) -> str:
        """Its value as text."""
        value = self.value(timing)
        return "-" if value is None else f"{value:.{self.digits}f}"


ROWS = (
    Row(label="decoding, s", value=lambda its: its.stats.decode_s, digits=2, ratio="decode"),
    Row(label="of that drafting, s", value=lambda its: its.stats.draft_s, digits=2, drafts=True),
    Row(label="encoding, s", value=lambda its: its.stats.encode_s, digits=2),
    Row(label="end to end, s", value=lambda its: its.wall_s, digits=2, ratio="wall"),
    Row(label="times real time", value=lambda its: its.times_real_time, digits=1),
    Row(label="forward passes", value=lambda its: its.stats.forwards, ratio="forwards"),
    Row(label="tokens a forward pass", value=lambda its: its.stats.tokens_per_forward, digits=2),
    Row(label="drafted tokens", value=lambda its: its.stats.drafted, drafts=True),
    Row(label="accepted tokens", value=lambda its: its.stats.accepted, drafts=True),
    Row(label="acceptance, %", value=lambda its: _percent(its.stats.acceptance_rate), digits=1, drafts=True),
    Row(label="forward passes of the draft", value=lambda its: its.stats.draft_forwards, drafts=True),
    Row(label="steps at rest", value=lambda its: its.stats.rested, drafts=True),
    Row(label="WER, %", value=lambda its: _rate(its.evaluation.wer if its.evaluation else None), digits=2),
    Row(label="CER, %", value=lambda its: _rate(its.evaluation.cer if its.evaluation else None), digits=2),
)
BEAM = (
    "Beam search goes without drafts, since its hypotheses part at every step and a draft follows one of them: "
    "{} decoded plainly.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
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

    by: Mapping[str, Any]
    recognizer: Recognizer
    repeats: int
    timings: Mapping[str, Timing]
    partings: tuple[Parting, ...]
    failures: tuple[Failure, ...]
    complete: bool

    @property
    def recordings(self) -> int:
        """How many were read."""
        return max(len(its.takes) for its in self.timings.values())

    def table(self) -> str:
        """What a person reads: who computed, times and counts, and whether the same was said."""
        its, *_ = self.timings.values()
        of = "" if self.repeats == 1 else f", median of {self.repeats} passes"
        draft = f"drafts: {self._draft}\n" if self._draft else ""
        return (
            f"{self.recognizer.model}, {self.recognizer.backend.capabilities.detail}\n{draft}"
            f"{counted(self.recordings, 'recording')}: {its.audio_s:.1f} s of sound{of}\n"
            f"{aligned(self._rows())}{self._agreement()}{self._notes()}"
        )

    def report(self) -> dict[str, Any]:
        """Everything, as `json.dumps` takes it; docs/speculation.md lists the keys."""
        return {
            "by": dict(self.by),
            "engine": self.recognizer.backend.capabilities.detail,
            "draft": self._draft,
            "complete": self.complete,
            "repeats": self.repeats,
            **{name: _figures(its) for name, its in self.timings.items()},
            "ratios": {row.ratio: ratio for row in ROWS if row.ratio and (ratio := self._ratio(row))},
            "partings": [_parting(its) for its in self.partings],
            "recordings": self._texts(),
            "failed": [{"audio": its.entry.name, "reason": its.reason} for its in self.failures],
        }

    @property
    def _draft(self) -> str | None:
        """What drafts, in words."""
        return _drafting(self.recognizer.speculator) if self.recognizer.speculator else None

    def _rows(self) -> Iterator[tuple[str, ...]]:
        both = len(self.timings) == 2
        if both:
            yield ("", *self.timings, "ratio")
        for row in ROWS:
            cells = [
                "-" if row.drafts and name == PLAIN else row.cell(its) for name, its in self.timings.items()
            ]
            if any(cell != "-" for cell in cells):
                ratio = self._ratio(row)
                yield (row.label, *cells, *([f"{ratio:.2f}" if ratio else ""] if both else []))

    def _ratio(self, row: Row) -> float | None:
        """How many times as much the plain engine takes."""
        if not row.ratio or len(self.timings) < 2:
            return None
        plain, speculative = (row.value(its) for its in self.timings.values())
        return plain / speculative if plain and speculative else None

    def _agreement(self) -> str:
        """Whether both engines said the same, and where not, the first token that differs."""
        if len(self.timings) < 2:
            return ""
        if not self.partings:
            return f"The tokens are the same in {counted(self.recordings, 'recording')}.\n"
        texts = sum(not its.same_text for its in self.partings)
        of = f"{len(self.partings)} of {counted(self.recordings, 'recording')}"
        lines = [f"The tokens differ in {of}, the text in {texts}; the first difference of each:\n"]
        for its in self.partings:
            one, other = (
                "the end" if token is None else f'"{self.recognizer.tokenizer.describe(token)}"'
                for token in its.tokens
            )
            lines.append(
                f"  {its.entry.name}: window at {time(its.start_s)}, token {its.index}: "
                f"{one}, with drafts {other}\n"
            )
        return "".join(lines)

    def _notes(self) -> str:
        stats = [*self.timings.values()][-1].stats
        ties = stats.near_ties
        notes = (
            f"Near ties: {counted(len(ties), 'token')} verified by a margin below {NEAR_TIE} in log-probability, "
            f"the least {min(ties):.6f}.\n"
            if ties
            else "",
            BEAM.format(counted(stats.unspeculated, "window")) if stats.unspeculated else "",
        )
        return "".join(notes)

    def _texts(self) -> list[dict[str, Any]]:
        """What each engine heard in each recording."""
        told: dict[str, dict[str, Any]] = {}
        for name, timing in self.timings.items():
            for take in timing.takes:
                heard = take.heard
                its = {"audio": take.entry.name, "seconds": heard.seconds, "language": heard.language}
                told.setdefault(take.entry.name, its)[name] = heard.text
        return [*told.values()]


def _drafting(speculator: Speculator) -> str:
    assistant = speculator.assistant
    if assistant is None:
        return "n-grams of the text so far and the prompt"
    dims = assistant.backend.dims
    encoder = "the model's encoder" if assistant.shares_encoder else "an encoder of its own"
    return f"a decoder of {counted(dims.n_text_layer, 'layer')}, {dims.n_text_state} wide, with {encoder}"


def _parting(its: Parting) -> dict[str, Any]:
    return {
        "audio": its.entry.name,
        "start_s": its.start_s,
        "index": its.index,
        "same_text": its.same_text,
        **dict(zip((PLAIN, SPECULATIVE), its.tokens, strict=True)),
    }


def _figures(its: Timing) -> dict[str, Any]:
    scores = its.evaluation
    return {
        "wall_s": its.wall_s,
        "audio_s": its.audio_s,
        "times_real_time": its.times_real_time,
        **asdict(its.stats),
        "acceptance_rate": its.stats.acceptance_rate,
        "tokens_per_forward": its.stats.tokens_per_forward,
        "wer": scores.wer.rate if scores and scores.wer else None,
        "cer": scores.cer.rate if scores and scores.cer else None,
    }


def _rate(its: ErrorRate | None) -> float | None:
    return _percent(its.rate) if its else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share

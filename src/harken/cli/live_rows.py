"""Rows of the table of live sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harken.evaluation import ErrorRate
from harken.evaluation.latency import Percentiles
from harken.evaluation.live_timing import LiveSummary

CellValue = float | ErrorRate | Percentiles | None


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One line of the table.

    Parameters
    ----------
    label : str
    value : callable
        Of a timing; None where there is none.
    digits : int
        Behind the decimal point.
    """

    label: str
    value: Callable[[LiveSummary], CellValue]
    digits: int = 2

    def cell(self, timing: LiveSummary) -> str:
        """Its value as text."""
        match self.value(timing):
            case None:
                return "-"
            case Percentiles(p50=p50, p95=p95, max=most):
                return " / ".join(f"{number:.{self.digits}f}" for number in (p50, p95, most))
            case ErrorRate() as error:
                return f"{100 * error.rate:.{self.digits}f}"
            case number:
                return f"{number:.{self.digits}f}"


LIVE_ROWS = (
    LiveRow("word shown, s: median / 95 % / longest", lambda its: its.interim_latency_aware),
    LiveRow("  as if computing took no time", lambda its: its.interim_latency_unaware),
    LiveRow("word committed, s", lambda its: its.commit_latency_aware),
    LiveRow("  as if computing took no time", lambda its: its.commit_latency_unaware),
    LiveRow("furthest behind the sound, s", lambda its: max(take.lag_s for take in its.runs)),
    LiveRow("WER offline, %", lambda its: its.offline_wer),
    LiveRow("WER of the segments, %", lambda its: its.final_wer),
    LiveRow(
        "  relative to offline, %",
        lambda its: None if its.relative_wer_increase is None else 100 * its.relative_wer_increase,
        1,
    ),
    LiveRow("WER of what was shown before them, %", lambda its: its.interim_wer),
    LiveRow("computing, s a second of sound", lambda its: its.cost.real_time_factor, 3),
    LiveRow("  of all processors", lambda its: its.cost.cpu_real_time_factor, 3),
    LiveRow("  offline, of all processors", lambda its: its.offline_cost.cpu_real_time_factor, 3),
    LiveRow("committed text taken back", lambda its: its.total("retractions"), 0),
    LiveRow("words taken off the screen for one that stays", lambda its: its.flicker),
    LiveRow("committed words revised by the segments", lambda its: its.total("revised"), 0),
    LiveRow("words timed", lambda its: len(its.latencies.words), 0),
    LiveRow("  not in the reference", lambda its: its.latencies.unmatched_hypothesis_words, 0),
    LiveRow("  of the reference, not heard", lambda its: its.latencies.unmatched_reference_words, 0),
    LiveRow("changes of load", lambda its: its.total("load_changes"), 0),
)

"""What live sessions came to over all streams: latencies of words, errors, cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, attrgetter

from harken.evaluation.hypotheses import EvalHypothesis
from harken.evaluation.latency import Latencies, Percentiles
from harken.evaluation.live_runs import ComputeCost, LiveRound, LiveRun
from harken.evaluation.scoring import ErrorRate, score, summarise
from harken.text import to_language_code
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSummary:
    """What sessions of one setting came to over all streams; of the passes over each, the one of median time counts.

    Attributes
    ----------
    takes : tuple of LiveTake
    interim_unaware, interim_aware, commit_unaware, commit_aware : Spread or None
        Latency of words until they were shown to stay, and until they were committed; None where no word has one.
    latencies : Latencies
    interim, final, offline : ErrorRate or None
        Word errors of what was shown last before the segments, of the segments, and of the offline pass.
    cost, offline_cost : Cost
    """

    runs: tuple[LiveRun, ...]
    interim_latency_unaware: Percentiles | None
    interim_latency_aware: Percentiles | None
    commit_latency_unaware: Percentiles | None
    commit_latency_aware: Percentiles | None
    latencies: Latencies
    interim_wer: ErrorRate | None
    final_wer: ErrorRate | None
    offline_wer: ErrorRate | None
    cost: ComputeCost
    offline_cost: ComputeCost

    @property
    def relative_wer_increase(self) -> float | None:
        """How much higher the error rate of the segments is than the offline one, relative to that."""
        if not (self.final_wer and self.offline_wer and self.offline_wer.rate):
            return None
        return self.final_wer.rate / self.offline_wer.rate - 1

    @property
    def flicker(self) -> float | None:
        """Words taken off the screen for each that stayed."""
        words = len(self.latencies.words) + self.latencies.unmatched_hypothesis_words
        return self.total("flickered") / words if words else None

    def total(self, name: str) -> int:
        """Sum of a count over all streams."""
        return sum(getattr(run, name) for run in self.runs)


def summarise_live(rounds: Sequence[LiveRound], name: str, options: TranscribeOptions) -> LiveSummary:
    """Add up the takes of one setting.

    Parameters
    ----------
    turns : sequence of LiveTurn
    name : str
        Of the setting.
    options : TranscribeOptions
        Those of the turns.
    """
    runs = tuple(_median_run(turn.runs[name]) for turn in rounds)
    latencies: Latencies = reduce(add, (its.latencies for its in runs), Latencies())

    def percentiles(attribute: str) -> Percentiles | None:
        return Percentiles.of(map(attrgetter(attribute), latencies.words))

    def wer(texts: Iterable[str]) -> ErrorRate | None:
        language = options.language and to_language_code(options.language)
        return summarise(
            score(turn.stream.entry, EvalHypothesis(text=text), turn.stream.entry.language or language)
            for turn, text in zip(rounds, texts, strict=True)
            if turn.stream.has_reference
        ).wer

    return LiveSummary(
        runs=runs,
        interim_latency_unaware=percentiles("interim_latency.computation_unaware_s"),
        interim_latency_aware=percentiles("interim_latency.computation_aware_s"),
        commit_latency_unaware=percentiles("commit_latency.computation_unaware_s"),
        commit_latency_aware=percentiles("commit_latency.computation_aware_s"),
        latencies=latencies,
        interim_wer=wer(its.interim_text for its in runs),
        final_wer=wer(its.final_text for its in runs),
        offline_wer=wer(turn.offline_text for turn in rounds),
        cost=reduce(add, (its.cost for its in runs), ComputeCost()),
        offline_cost=reduce(add, (turn.offline_cost for turn in rounds), ComputeCost()),
    )


def _median_run(runs: Sequence[LiveRun]) -> LiveRun:
    """The one that took the median time."""
    return sorted(runs, key=lambda run: run.cost.wall_s)[(len(runs) - 1) // 2]

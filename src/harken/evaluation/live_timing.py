"""What live sessions came to over all streams: latencies of words, errors, cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, attrgetter

from harken.evaluation.hypotheses import Heard
from harken.evaluation.latency import Latencies, Spread
from harken.evaluation.live_takes import Cost, LiveTake, LiveTurn
from harken.evaluation.summary import ErrorRate, score, summarise
from harken.text import resolve
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTiming:
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

    takes: tuple[LiveTake, ...]
    interim_unaware: Spread | None
    interim_aware: Spread | None
    commit_unaware: Spread | None
    commit_aware: Spread | None
    latencies: Latencies
    interim: ErrorRate | None
    final: ErrorRate | None
    offline: ErrorRate | None
    cost: Cost
    offline_cost: Cost

    @property
    def excess(self) -> float | None:
        """How much higher the error rate of the segments is than the offline one, relative to that."""
        if not (self.final and self.offline and self.offline.rate):
            return None
        return self.final.rate / self.offline.rate - 1

    @property
    def flicker(self) -> float | None:
        """Words taken off the screen for each that stayed."""
        words = len(self.latencies.words) + self.latencies.unspoken
        return self.total("flickered") / words if words else None

    def total(self, name: str) -> int:
        """Sum of a count over all streams."""
        return sum(getattr(take, name) for take in self.takes)


def live_timing(turns: Sequence[LiveTurn], name: str, options: TranscribeOptions) -> LiveTiming:
    """Add up the takes of one setting.

    Parameters
    ----------
    turns : sequence of LiveTurn
    name : str
        Of the setting.
    options : TranscribeOptions
        Those of the turns.
    """
    takes = tuple(_middle(turn.takes[name]) for turn in turns)
    found: Latencies = reduce(add, (its.latencies for its in takes), Latencies())

    def spread(of: str) -> Spread | None:
        return Spread.of(map(attrgetter(of), found.words))

    def errors(texts: Iterable[str]) -> ErrorRate | None:
        language = options.language and resolve(options.language)
        return summarise(
            score(turn.reel.entry, Heard(text=text), turn.reel.entry.language or language)
            for turn, text in zip(turns, texts, strict=True)
            if turn.reel.referenced
        ).wer

    return LiveTiming(
        takes=takes,
        interim_unaware=spread("interim.unaware_s"),
        interim_aware=spread("interim.aware_s"),
        commit_unaware=spread("commit.unaware_s"),
        commit_aware=spread("commit.aware_s"),
        latencies=found,
        interim=errors(its.interim for its in takes),
        final=errors(its.final for its in takes),
        offline=errors(turn.offline for turn in turns),
        cost=reduce(add, (its.cost for its in takes), Cost()),
        offline_cost=reduce(add, (turn.offline_cost for turn in turns), Cost()),
    )


def _middle(takes: Sequence[LiveTake]) -> LiveTake:
    """The one that took the median time."""
    return sorted(takes, key=lambda its: its.cost.wall_s)[(len(takes) - 1) // 2]

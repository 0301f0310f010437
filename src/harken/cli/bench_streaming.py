"""``harken bench --streaming``: how soon words are shown and committed, how rightly, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from time import perf_counter, process_time
from typing import Any

from harken.api import Recognizer
from harken.cli.exits import Stop
from harken.cli.layout import aligned, counted
from harken.cli.live_rows import ROWS
from harken.cli.screen import Screen
from harken.evaluation import ErrorRate, Failure, Sound
from harken.evaluation.joined import Reel, join
from harken.evaluation.live import Live
from harken.evaluation.live_takes import Cost, LiveTurn, take_live
from harken.evaluation.live_timing import LiveTiming, live_timing
from harken.streaming import Setting, StreamOptions
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

SLOWEST = 10
"""Words with the longest latency that the JSON object names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMeasured:
    """What was measured.

    Parameters
    ----------
    by : mapping
        What was chosen to compute with.
    recognizer : Recognizer
    repeats : int
    ways : mapping of str to StreamOptions
        Options of the sessions, by their names.
    settings : mapping of str to Setting
        How each begins to hear.
    turns : tuple of LiveTurn
    timings : mapping of str to LiveTiming
    failures : tuple of Failure
    complete : bool
        Whether all streams were done.
    """

    by: Mapping[str, Any]
    recognizer: Recognizer
    repeats: int
    ways: Mapping[str, StreamOptions]
    settings: Mapping[str, Setting]
    turns: tuple[LiveTurn, ...]
    timings: Mapping[str, LiveTiming]
    failures: tuple[Failure, ...]
    complete: bool

    @property
    def recordings(self) -> int:
        """How many were heard."""
        return sum(len(turn.reel.sounds) for turn in self.turns)

    def table(self) -> str:
        """What a person reads: settings side by side."""
        of = "" if self.repeats == 1 else f", median of {self.repeats} passes"
        audio_s = sum(turn.offline_cost.audio_s for turn in self.turns)
        streams = f"{counted(len(self.turns), 'stream')} of {counted(self.recordings, 'recording')}"
        return (
            f"{self.recognizer.model}, {self.recognizer.backend.capabilities.detail}\n"
            f"{streams}: {audio_s:.1f} s of sound{of}\n"
            f"{aligned(self._rows())}"
        )

    def report(self) -> dict[str, Any]:
        """Everything, as `json.dumps` takes it; docs/cli.md lists the keys."""
        return {
            "by": dict(self.by),
            "engine": self.recognizer.backend.capabilities.detail,
            "complete": self.complete,
            "repeats": self.repeats,
            "settings": {
                name: {
                    "options": asdict(self.ways[name]),
                    "setting": asdict(self.settings[name]),
                    **_figures(its),
                    "slowest": self._slowest(name),
                }
                for name, its in self.timings.items()
            },
            "streams": [self._stream(turn, index) for index, turn in enumerate(self.turns)],
            "failed": [{"audio": its.entry.name, "reason": its.reason} for its in self.failures],
        }

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield ("", *self.timings)
        yield ("window, hop, history, s", *map(_described, self.settings.values()))
        for row in ROWS:
            cells = [row.cell(its) for its in self.timings.values()]
            if any(cell != "-" for cell in cells):
                yield (row.label, *cells)

    def _slowest(self, name: str) -> list[dict[str, Any]]:
        """Words that were committed latest, with their stream."""
        timed = (
            {"audio": turn.reel.entry.name, **asdict(word)}
            for turn, take in zip(self.turns, self.timings[name].takes, strict=True)
            for word in take.latencies.words
        )
        return sorted(timed, key=lambda its: -its["commit"]["aware_s"])[:SLOWEST]

    def _stream(self, turn: LiveTurn, index: int) -> dict[str, Any]:
        takes = {name: its.takes[index] for name, its in self.timings.items()}
        return {
            "audio": turn.reel.entry.name,
            "seconds": turn.offline_cost.audio_s,
            "offline": turn.offline,
            **{name: {"interim": its.interim, "final": its.final.strip()} for name, its in takes.items()},
        }


def live_ways(given: Mapping[str, Any]) -> dict[str, StreamOptions]:
    """Options of every session that is asked for, by their names: each delay with each kind of finals.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """
    single = {field.name: given[field.name] for field in fields(StreamOptions)}
    pairs = product(single.pop("delay").split(","), single.pop("finals").split(","))
    return {
        f"{delay} {finals}": StreamOptions(delay=delay.strip(), finals=finals.strip(), **single)
        for delay, finals in pairs
    }


def measure_live(
    screen: Screen,
    recognizer: Recognizer,
    sounds: Sequence[Sound],
    options: TranscribeOptions,
    given: Mapping[str, Any],
    by: Mapping[str, Any],
) -> tuple[LiveMeasured, Stop | None]:
    """Hear everything live; what came of it, and what ended it early."""
    ways = live_ways(given)
    clock = process_time if given["one_core"] else perf_counter
    sessions = {name: partial(_open, recognizer, way, clock) for name, way in ways.items()}
    settings = {name: recognizer.stream(options, live=way, clock=clock).setting for name, way in ways.items()}
    alone = (Reel(sounds=(sound,)) for sound in sounds)
    reels = tuple(alone) if given["join"] is None else join(sounds, given["join"])
    turns, failures, stop = _take(
        screen,
        reels,
        take_live(
            recognizer,
            sessions,
            reels,
            options,
            block_samples=round(given["block_s"] * SAMPLE_RATE),
            repeats=given["repeat"],
            one_core=given["one_core"],
        ),
    )
    measured = LiveMeasured(
        by=by,
        recognizer=recognizer,
        repeats=given["repeat"],
        ways=ways,
        settings=settings,
        turns=turns,
        timings={name: live_timing(turns, name, options) for name in ways} if turns else {},
        failures=failures,
        complete=stop is None,
    )
    return measured, stop


def _open(
    recognizer: Recognizer, way: StreamOptions, clock: Callable[[], float], options: TranscribeOptions
) -> Live:
    return recognizer.stream(options, live=way, clock=clock)


def _take(
    screen: Screen, reels: Sequence[Reel], outcomes: Iterator[LiveTurn | Failure]
) -> tuple[tuple[LiveTurn, ...], tuple[Failure, ...], Stop | None]:
    """What every turn gave, and what ended them early."""
    turns: list[LiveTurn] = []
    failures: list[Failure] = []
    lengths_s = [reel.entry.seconds for reel in reels]
    progress = screen.track(
        counted(len(reels), "stream"), None if None in lengths_s else sum(filter(None, lengths_s))
    )
    try:
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                failures.append(outcome)
                continue
            turns.append(outcome)
            progress(sum(its.offline_cost.audio_s for its in turns), False)
    except Stop as stop:
        return tuple(turns), tuple(failures), stop
    return tuple(turns), tuple(failures), None


def _described(setting: Setting) -> str:
    frames = (setting.window_frames, setting.hop_frames, setting.history_frames)
    return ", ".join(f"{number / 100:g}" for number in frames)


def _figures(its: LiveTiming) -> dict[str, Any]:
    found = its.latencies
    return {
        "interim": {"aware": _optional(its.interim_aware), "unaware": _optional(its.interim_unaware)},
        "commit": {"aware": _optional(its.commit_aware), "unaware": _optional(its.commit_unaware)},
        "words": {"timed": len(found.words), "unspoken": found.unspoken, "unheard": found.unheard},
        "wer": {
            "offline": _rate(its.offline),
            "final": _rate(its.final),
            "interim": _rate(its.interim),
            "excess": its.excess,
        },
        "cost": _factors(its.cost),
        "offline_cost": _factors(its.offline_cost),
        **{name: its.total(name) for name in ("updates", "retractions", "flickered", "revised", "loads")},
        "lag_s": max(take.lag_s for take in its.takes),
    }


def _factors(cost: Cost) -> dict[str, float]:
    return {**asdict(cost), "real_time_factor": cost.real_time_factor, "cpu_factor": cost.cpu_factor}


def _optional(spread: Any) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _rate(rate: ErrorRate | None) -> float | None:
    return None if rate is None else rate.rate

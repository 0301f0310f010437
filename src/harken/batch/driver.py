"""The driver of a batch: it hands out shards, tries again what was lost, and cuts down to the file what breaks workers.

It decodes nothing, and does not know where its workers are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic

from harken.batch.plan import Recipe, Shard
from harken.batch.rows import ShardReport, error_row, publish_shard
from harken.batch.store import Store
from harken.batch.worker import Progress, allowed_time_s
from harken.batch.workers import Broken, Message, Workers
from harken.errors import OutputError
from harken.types import WINDOW_S

POLL_S = 1.0
STATE_EVERY_S = 0.5
_STALLED = 2.0
"""Time without progress, in multiples of what a window may take, after which a worker hangs: otherwise it minds the
time of each recording itself, and ends it within a decoder step."""
_WAIT_FOR_WORKERS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class BatchState:
    """The state of a batch that runs.

    Parameters
    ----------
    rows, failed : int
        Recordings that are done, and those among them that failed; also of earlier runs.
    published : int
        Those whose rows are in the output folder, which the end of the driver does not undo.
    all_rows : int
    audio_s : float
        Seconds of audio that this run has transcribed.
    left_s : float
        Estimated seconds of audio that are left.
    workers : int
        Workers that have loaded the model.
    elapsed_s : float
    """

    rows: int
    failed: int
    published: int
    all_rows: int
    audio_s: float
    left_s: float
    workers: int
    elapsed_s: float

    @property
    def speed(self) -> float:
        """Seconds of audio transcribed a second."""
        return self.audio_s / self.elapsed_s if self.elapsed_s else 0.0


@dataclass
class _Running:
    shard: Shard
    latest_s: float
    progress: Progress = field(default_factory=Progress)


class Driver:
    """Has shards transcribed, long ones first, until each is done.

    A recording is given up after so many `tries` with which a worker was lost. The time limit is in seconds of work for
    a second of audio. `on_state` is called twice a second, with counts that begin with those `before`, and `note` with
    lines for people.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        workers: Workers,
        store: Store,
        recipe: Recipe,
        *,
        tries: int,
        time_limit: float,
        on_state: Callable[[BatchState], None],
        note: Callable[[str], None],
        before: ShardReport,
    ) -> None:
        self._workers, self._store, self._recipe = workers, store, recipe
        self._tries, self._time_limit = tries, time_limit
        self._on_state, self._note = on_state, note
        self._began_s = monotonic()
        self._queue: list[tuple[float, int, Shard]] = []
        self._order = count()
        self._running: dict[str, _Running] = {}
        self._losses: dict[str, int] = {}
        self._left_s = sum(shard.seconds for shard in shards)
        self._audio_s = 0.0
        self._all_rows = before.rows + sum(len(shard.recordings) for shard in shards if not shard.retry)
        self._is_waiting_noted = False
        self._rows, self._failed = before.rows, before.n_failed
        self._shown_s = self._checked_s = -math.inf
        self.reports: dict[str, ShardReport] = {}
        for shard in shards:
            self._push(shard)

    def run(self) -> None:
        """Do all shards.

        An error is raised if rows cannot be written, or no worker can load the model.
        """
        self._report(at_once=True)
        while self._queue or self._running:
            while self._queue and self._workers.n_free:
                shard = heapq.heappop(self._queue)[2]
                self._running[shard.name] = _Running(shard, monotonic())
                self._workers.start(shard)
            self._workers.wait(POLL_S, self._handle)
            self._end_stalled()
            self._store.renew()
            self._report()
        self._report(at_once=True)

    def _handle(self, shard: Shard, message: Message) -> None:
        """Take note of something that has happened to a shard."""
        if shard.name not in self._running:
            return
        if isinstance(message, Progress):
            running = self._running[shard.name]
            if message != running.progress:  # a worker that hangs may still answer
                running.progress, running.latest_s = message, monotonic()
            self._store.renew()  # a worker in this process returns only when its shard is done
            self._report()
            return
        del self._running[shard.name]
        if isinstance(message, ShardReport):
            self._finish(shard, message)
        else:
            self._try_again(shard, message)

    def _finish(self, shard: Shard, report: ShardReport) -> None:
        self.reports[shard.name] = report
        self._left_s -= shard.seconds
        self._audio_s += report.audio_s
        self._rows += 0 if shard.retry else report.rows
        self._failed += report.n_failed
        self._report(at_once=True)

    def _try_again(self, shard: Shard, broken: Broken) -> None:
        """Have a shard done once more: whole the first time, then in halves, and a single recording a few times."""
        losses = self._losses[shard.name] = self._losses.get(shard.name, 0) + 1
        is_single = len(shard.recordings) == 1
        if broken.unwritten:
            if losses >= self._tries:
                raise OutputError(broken.reason)
            self._push(shard)
        elif losses < min(self._tries, 2) or ((is_single or shard.retry) and losses < self._tries):
            self._note(f"{_first_name(shard)}: {broken.reason}; it is tried again")
            self._push(shard)
        elif shard.retry:
            self._note(f"{_first_name(shard)}: {broken.reason}; its rows stay as they were")
            self._left_s -= shard.seconds
        elif is_single:
            self._give_up(shard, broken, losses)
        else:
            self._note(f"{_first_name(shard)}: {broken.reason}; it is split")
            for half in shard.halves():
                self._losses.setdefault(half.name, 1)  # one of them is to blame, so that is found sooner
                self._push(half)

    def _give_up(self, shard: Shard, broken: Broken, losses: int) -> None:
        """Publish that a recording cannot be transcribed."""
        (recording,) = shard.recordings
        message = f"{recording.location}: {broken.reason}"
        self._note(f"{message}; it is given up")
        rows = [error_row(recording, broken.kind, message, losses)]
        self._finish(shard, publish_shard(self._store, self._recipe, shard.name, rows))

    def _push(self, shard: Shard) -> None:
        heapq.heappush(self._queue, (-shard.seconds, next(self._order), shard))

    def _end_stalled(self) -> None:
        """End workers that hang in a call; looks at most once a second, for workers may be many."""
        now_s = monotonic()
        if now_s - self._checked_s < POLL_S:
            return
        self._checked_s = now_s
        window_s = WINDOW_S * self._recipe.batch_size
        limit_s = _STALLED * allowed_time_s(window_s, self._time_limit)
        for running in [*self._running.values()]:
            if now_s - running.latest_s > limit_s:
                self._workers.give_up(running.shard)

    def _report(self, *, at_once: bool = False) -> None:
        """Tell the state, at most twice a second."""
        now_s = monotonic()
        if not at_once and now_s - self._shown_s < STATE_EVERY_S:
            return
        self._shown_s, elapsed_s = now_s, now_s - self._began_s
        if not (self._workers.n_alive or self._is_waiting_noted) and elapsed_s > _WAIT_FOR_WORKERS_S:
            self._is_waiting_noted = True
            self._note(f"no worker has started in {elapsed_s:.0f} s: are there processors for one?")
        running_s = sum(running.progress.audio_s for running in self._running.values())
        running_rows = sum(running.progress.rows for running in self._running.values())
        self._on_state(
            BatchState(
                rows=min(self._rows + running_rows, self._all_rows),
                failed=self._failed,
                published=self._rows,
                all_rows=self._all_rows,
                audio_s=self._audio_s + running_s,
                left_s=max(self._left_s - running_s, 0.0),
                workers=self._workers.n_alive,
                elapsed_s=elapsed_s,
            )
        )


def _first_name(shard: Shard) -> str:
    """Return the recordings of a shard in words."""
    first, *others = shard.recordings
    return first.location + (f" and {len(others)} more" if others else "")

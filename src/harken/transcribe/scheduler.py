"""The scheduler: it decodes windows of several chains together, of one recording or of many.

A chain is a sequence of windows of which each depends on the one before it. Chains do not depend on each other, so the
batch size changes the time that decoding takes, and not the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harken.decoding import DecodeStats
from harken.errors import Cancelled
from harken.results import Segment
from harken.transcribe.options import CallbackError
from harken.transcribe.recording import RecordingTranscriber
from harken.transcribe.window_chain import WindowChain
from harken.transcribe.window_decoder import AudioWindow, WindowDecoder


class _ReadyChain(NamedTuple):
    recording: RecordingTranscriber
    chain: WindowChain
    window: AudioWindow  # its next one


WINDOWS_TOGETHER, WINDOWS_TOGETHER_ON_GPU = 2, 4
"""Windows of a recording that are decoded together by default: much of what more of them gain, for little memory."""


class Scheduler:
    """Recordings that are transcribed, as many of their windows at a time as fit into a batch.

    Parameters
    ----------
    window_decoder : WindowDecoder
    recordings : iterable of RecordingTranscriber
        Started in this order, each when there is room for it.
    batch_size : int or None
        Most windows to decode together. None is one stepwise and of several recordings, else `WINDOWS_TOGETHER` (on a
        GPU `WINDOWS_TOGETHER_ON_GPU`) of a single recording.
    first_window_alone : bool
        Decode the first window by itself, so that its words are there sooner.
    """

    def __init__(
        self,
        window_decoder: WindowDecoder,
        recordings: Iterable[RecordingTranscriber],
        batch_size: int | None,
        *,
        first_window_alone: bool = True,
    ) -> None:
        self._window_decoder, self._batch_size = window_decoder, batch_size or 1
        on_cpu = window_decoder.backend.capabilities.device == "cpu"
        self._windows_together = batch_size or (WINDOWS_TOGETHER if on_cpu else WINDOWS_TOGETHER_ON_GPU)
        self._waiting = deque(recordings)
        self._started: list[RecordingTranscriber] = []
        self._active: list[tuple[RecordingTranscriber, WindowChain]] = []
        self._next_window_alone = first_window_alone

    @property
    def stats(self) -> DecodeStats:
        """Cost of decoding all recordings so far."""
        return self._window_decoder.stats

    def segments(self, recording: RecordingTranscriber) -> Iterator[Segment]:
        """Yield the segments of one of the recordings as they are decoded; the others advance with it.

        Raises
        ------
        AudioError
            If the recording breaks off; after the segments before that.
        Cancelled
            Within one decoder step of a callback's answer.
        Exception
            Of a callback.
        """
        while True:
            while recording.ready_segments:
                yield recording.ready_segments.popleft()
            recording.report_progress()
            if recording.finished:
                break
            self.advance()
        if recording.failure:
            raise recording.failure

    def advance(self, *, stepwise: bool = False) -> None:
        """Decode one window of each active chain, or only read on, or notice that a recording has ended."""
        batch_size = self._batch_size if stepwise else self._windows_together
        if self._next_window_alone:
            batch_size = 1
        ready = [
            _ReadyChain(recording, chain, window)
            for recording, chain in self._active
            if (window := recording.next_window(chain))
        ]
        ended = self._collect_segments()
        self._fill(ready, self._started, batch_size)
        ended |= self._collect_segments()
        if not ended:
            self._fill(ready, self._start_waiting(), min(batch_size, self._batch_size))
        # Before anything is decoded: an exception out of a callback must not lose these windows.
        self._active = [(each.recording, each.chain) for each in ready]
        if ready and not ended:
            self._next_window_alone = False
            self._decode(ready)
            self._collect_segments()

    def _decode(self, ready: Sequence[_ReadyChain]) -> None:
        """Decode one window of each chain.

        If one recording is cancelled, or a callback of its own fails, the others go on.
        """
        decoder, failed = self._window_decoder, None
        try:
            encoded = decoder.encode([each.window for each in ready])
            requests = [
                active.recording.request(active.chain, window)
                for active, window in zip(ready, encoded, strict=True)
            ]
            results, passes = decoder.decode(requests)
        except Cancelled as cancelled:
            stopped = [recording for recording in self._started if recording.callbacks.is_cancelled()]
            if not stopped:
                raise
            for recording in stopped:
                recording.stop(cancelled)
            return
        except CallbackError as error:
            failed = error
        if failed:
            owners = [recording for recording in self._started if recording.callbacks == failed.callbacks]
            if len(owners) > 1:
                raise failed.error
            owners[0].stop(failed.error)
            return
        for decoded in passes:
            for recording in dict.fromkeys(ready[i].recording for i in decoded.requests):
                recording.stats += decoded.stats
        for active, result in zip(ready, results, strict=True):
            active.recording.add_result(active.chain, result)

    def _fill(
        self, ready: list[_ReadyChain], recordings: Iterable[RecordingTranscriber], batch_size: int
    ) -> None:
        """Add the first windows of new chains as long as there is room."""
        opened = ((recording, chain) for recording in recordings for chain in iter(recording.next_chain, None))
        while len(ready) < batch_size and (new := next(opened, None)):
            recording, chain = new
            if window := recording.next_window(chain):
                ready.append(_ReadyChain(recording, chain, window))

    def _start_waiting(self) -> Iterator[RecordingTranscriber]:
        """Start the recordings that wait, one after another, unless there is more to read of one before."""
        while self._waiting and not any(recording.reads_on for recording in self._started):
            self._started.append(self._waiting.popleft())
            yield self._started[-1]

    def _collect_segments(self) -> bool:
        """Collect the segments of all chains; return True if that was the last of some recording."""
        for recording in self._started:
            recording.collect_segments()
        unfinished = [recording for recording in self._started if not recording.finished]
        ended = len(unfinished) < len(self._started)
        self._started = unfinished
        return ended

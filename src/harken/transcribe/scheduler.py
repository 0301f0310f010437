"""Decode the windows of several lanes together: of one recording, of many, or of both.

A lane is a chain of windows of which each depends on the one before it. Lanes do not depend on each other, so how many
of them are decoded together changes how long it takes and not what is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from harken.decoding import DecodeStats
from harken.errors import Cancelled
from harken.results import Segment
from harken.transcribe.recording import RecordingTranscriber
from harken.transcribe.window_chain import WindowChain
from harken.transcribe.window_decoder import DecodeRequest, WindowDecoder


class Scheduler:
    """Recordings on their way; as many windows as fit are decoded at a time.

    Parameters
    ----------
    hearing : Hearing
        Decodes windows.
    recordings : iterable of LongForm
        Begun in this order, each when there is room for it.
    size : int
        Most windows to decode together.
    eager : bool
        Whether the first window goes alone, so that its words are there sooner.
    """

    def __init__(
        self,
        window_decoder: WindowDecoder,
        recordings: Iterable[RecordingTranscriber],
        batch_size: int,
        *,
        first_window_alone: bool = True,
    ) -> None:
        self._window_decoder, self._batch_size = window_decoder, batch_size
        self._waiting = deque(recordings)
        self._active: list[RecordingTranscriber] = []
        self._chains: list[WindowChain] = []
        self._next_window_alone = first_window_alone

    @property
    def stats(self) -> DecodeStats:
        """What decoding all of them has cost so far."""
        return self._window_decoder.stats

    def segments(self, recording: RecordingTranscriber) -> Iterator[Segment]:
        """Segments of one of the recordings as they are decoded; the others advance with it.

        Raises
        ------
        AudioError
            Where the recording breaks off; after the segments before that.
        Cancelled
            Within one decoder step of a hook's answer.
        """
        while True:
            while recording.ready_segments:
                yield recording.ready_segments.popleft()
            recording.report_progress()
            if recording.finished:
                break
            self._decode_batch()
        if recording.failure:
            raise recording.failure

    def _decode_batch(self) -> None:
        """Decode one window of each lane in work; or only find that a recording has ended, for its caller to know."""
        size = 1 if self._next_window_alone else self._batch_size
        requests = [(chain, request) for chain in self._chains if (request := chain.next_request())]
        ended = self._collect_segments()
        self._add_chains(requests, self._active, size)
        ended |= self._collect_segments()
        if not ended:
            self._add_chains(requests, self._start_waiting(), size)
        # Before anything is decoded: what a hook raises must not lose them.
        self._chains = [lane for lane, _ in requests]
        if not ended:
            self._next_window_alone = False
            self._decode_requests(requests)
            self._collect_segments()

    def _decode_requests(self, requests: list[tuple[WindowChain, DecodeRequest]]) -> None:
        """Decode one window of each lane; one recording that is cancelled does not end the others."""
        try:
            results = self._window_decoder.decode([job for _, job in requests])
        except Cancelled as cancelled:
            stopped = [recording for recording in self._active if recording.callbacks.is_cancelled()]
            if not stopped:
                raise
            for recording in stopped:
                recording.stop(cancelled)
            return
        for (chain, _), result in zip(requests, results, strict=True):
            chain.add_result(result)

    def _add_chains(
        self,
        requests: list[tuple[WindowChain, DecodeRequest]],
        recordings: Iterable[RecordingTranscriber],
        size: int,
    ) -> None:
        """Add the first windows of new lanes as long as there is room."""
        new_chains = (chain for recording in recordings for chain in iter(recording.next_chain, None))
        while len(requests) < size and (lane := next(new_chains, None)):
            if request := lane.next_request():
                requests.append((lane, request))

    def _start_waiting(self) -> Iterator[RecordingTranscriber]:
        """Recordings that have been waiting."""
        while self._waiting:
            self._active.append(self._waiting.popleft())
            yield self._active[-1]

    def _collect_segments(self) -> bool:
        """Take what the lanes have to give; whether that was the last of some recording."""
        for recording in self._active:
            recording.collect_segments()
        unfinished = [recording for recording in self._active if not recording.finished]
        ended = len(unfinished) < len(self._active)
        self._active = unfinished
        return ended

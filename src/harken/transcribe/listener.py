"""Find speech in a recording while it is read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from harken.audio.vad import Region, Regions, SpeechDetector, VadOptions
from harken.contract import Floats
from harken.transcribe.packing import Packer, Spans
from harken.transcribe.settle import BETWEEN_WORDS
from harken.transcribe.windows import MelWindows
from harken.types import HOP_SAMPLES

Clip = tuple[int, int | None]


class Listener:
    """Listens in on the samples of a recording.

    Parameters
    ----------
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    options : VadOptions

    Attributes
    ----------
    regions : list of (int, int)
        Mel frames of the speech that is certain by now.
    """

    def __init__(self, blocks: Iterator[Floats], options: VadOptions) -> None:
        self._blocks = blocks
        self._detector, self._regions = SpeechDetector(), Regions(options)
        # Of the same speech: a word that only a lower threshold finds has its region here too.
        self._between_words = Regions(
            replace(
                BETWEEN_WORDS,
                onset=options.onset,
                offset=options.offset,
                min_speech_s=options.min_speech_s,
            )
        )
        self._close: list[Region] = []
        self._heard = np.empty(1024, np.float32)
        self._chunks = 0
        self._samples = 0
        self.regions: list[Region] = []

    def blocks(self) -> Iterator[Floats]:
        """The samples, passed on once they have been listened to."""
        try:
            for block in self._blocks:
                self._samples += len(block)
                self._hear(self._detector.feed(block))
                yield block
        finally:
            self._hear(self._detector.flush())
            self.regions += self._regions.flush(self._samples // HOP_SAMPLES)
            self._close += self._between_words.flush(self._samples // HOP_SAMPLES)

    def packs(self, windows: MelWindows, clips: Iterable[Clip], window_frames: int) -> Iterator[Spans]:
        """Spans of speech within some clips, a window of them at a time, as soon as they are certain.

        Parameters
        ----------
        windows : MelWindows
            Reads `blocks`; forgets what no window can need any more.
        clips : iterable of (start, end)
            In frames; an end of None is that of the recording.
        window_frames : int
        """
        for start, end in clips:
            packer, taken, reading = Packer(window_frames), 0, True
            while reading:
                reading = (end is None or self._regions.settled_frames < end) and windows.read()
                while taken < len(self.regions):
                    first, last = self.regions[taken]
                    taken += 1
                    clipped = max(first, start), last if end is None else min(last, end)
                    if clipped[0] < clipped[1]:
                        yield from packer.add(clipped)
                settled = self._regions.settled_frames
                yield from packer.settle(settled)
                needed = settled if packer.begin is None else packer.begin
                windows.forget(needed if end is None else min(needed, end))  # the next clip may begin there
            yield from packer.flush()

    @property
    def probabilities(self) -> Floats:
        """How probable speech is, one value every 512 samples, so far."""
        return self._heard[: self._chunks]

    def between_words(self, start: int, end: int) -> list[Region]:
        """Speech near a stretch that has been read, with the silences between words left out."""
        first = bisect_left(self._close, start, key=lambda region: region[1])
        last = bisect_right(self._close, end, key=lambda region: region[0])
        since = self._between_words.speaking_since
        going_on = [(since, end)] if since is not None and since < end else []
        return [*self._close[max(0, first - 1) : last + 1], *going_on]

    def _hear(self, probabilities: Floats) -> None:
        chunks = self._chunks + len(probabilities)
        while chunks > len(self._heard):
            self._heard = np.concatenate([self._heard, np.empty_like(self._heard)])
        self._heard[self._chunks : chunks] = probabilities
        self._chunks = chunks
        values = probabilities.tolist()
        self.regions += self._regions.feed(values)
        self._close += self._between_words.feed(values)

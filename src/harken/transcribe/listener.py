"""Find speech in a recording while it is read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from harken.audio.vad import RegionTracker, SpeechDetector, SpeechRegion, VadOptions
from harken.contract import Floats
from harken.transcribe.chunking import FrameSpans, SpeechPacker
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.word_boundaries import WORD_VAD_OPTIONS
from harken.types import HOP_SAMPLES

ClipRange = tuple[int, int | None]


class SpeechSegmenter:
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
        self._detector, self._vad = SpeechDetector(), RegionTracker(options)
        # Of the same speech: a word that only a lower threshold finds has its region here too.
        self._word_vad = RegionTracker(
            replace(
                WORD_VAD_OPTIONS,
                threshold=options.threshold,
                neg_threshold=options.neg_threshold,
                min_speech_s=options.min_speech_s,
            )
        )
        self._word_regions: list[SpeechRegion] = []
        self._probabilities = np.empty(1024, np.float32)
        self._n_chunks = 0
        self._n_samples = 0
        self.regions: list[SpeechRegion] = []

    def blocks(self) -> Iterator[Floats]:
        """The samples, passed on once they have been listened to."""
        try:
            for block in self._blocks:
                self._n_samples += len(block)
                self._add_probabilities(self._detector.feed(block))
                yield block
        finally:
            self._add_probabilities(self._detector.flush())
            self.regions += self._vad.flush(self._n_samples // HOP_SAMPLES)
            self._word_regions += self._word_vad.flush(self._n_samples // HOP_SAMPLES)

    def packed_spans(
        self, windows: MelWindows, clips: Iterable[ClipRange], window_frames: int
    ) -> Iterator[FrameSpans]:
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
            packer, n_packed, reading = SpeechPacker(window_frames), 0, True
            while reading:
                reading = (end is None or self._vad.stable_until_frames < end) and windows.read_block()
                while n_packed < len(self.regions):
                    first, last = self.regions[n_packed]
                    n_packed += 1
                    clipped = max(first, start), last if end is None else min(last, end)
                    if clipped[0] < clipped[1]:
                        yield from packer.add(clipped)
                certain_frames = self._vad.stable_until_frames
                yield from packer.advance_to(certain_frames)
                needed = certain_frames if packer.start_frame is None else packer.start_frame
                windows.discard_before(
                    needed if end is None else min(needed, end)
                )  # the next clip may begin there
            yield from packer.flush()

    @property
    def probabilities(self) -> Floats:
        """How probable speech is, one value every 512 samples, so far."""
        return self._probabilities[: self._n_chunks]

    def word_regions(self, start: int, end: int) -> list[SpeechRegion]:
        """Speech near a stretch that has been read, with the silences between words left out."""
        first = bisect_left(self._word_regions, start, key=lambda region: region[1])
        last = bisect_right(self._word_regions, end, key=lambda region: region[0])
        speaking_since = self._word_vad.speaking_since
        open_region = [(speaking_since, end)] if speaking_since is not None and speaking_since < end else []
        return [*self._word_regions[max(0, first - 1) : last + 1], *open_region]

    def _add_probabilities(self, probabilities: Floats) -> None:
        n_chunks = self._n_chunks + len(probabilities)
        while n_chunks > len(self._probabilities):
            self._probabilities = np.concatenate([self._probabilities, np.empty_like(self._probabilities)])
        self._probabilities[self._n_chunks : n_chunks] = probabilities
        self._n_chunks = n_chunks
        values = probabilities.tolist()
        self.regions += self._vad.feed(values)
        self._word_regions += self._word_vad.feed(values)

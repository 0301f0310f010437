"""Find speech in a recording while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harken.audio.vad import Region, Regions, SpeechDetector, VadOptions
from harken.contract import Floats
from harken.transcribe.packing import Packer, Spans
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
    probabilities : list of ndarray of shape (chunks,), float32
        How probable speech is, one value every 512 samples.
    """

    def __init__(self, blocks: Iterator[Floats], options: VadOptions) -> None:
        self._blocks = blocks
        self._detector, self._regions = SpeechDetector(), Regions(options)
        self.probabilities: list[Floats] = []
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
                windows.forget(settled if packer.begin is None else packer.begin)
            yield from packer.flush()

    def _hear(self, probabilities: Floats) -> None:
        self.probabilities.append(probabilities)
        self.regions += self._regions.feed(probabilities.tolist())

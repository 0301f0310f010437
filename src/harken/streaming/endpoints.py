"""Where an utterance of a stream begins, and where it ends: at a long pause, or a shorter one behind a sentence.

The longer an utterance is, the shorter a pause ends it, so that it ends where somebody has just paused. Only one that
has no pause until it is too long is cut where it had its longest silence, which may be long ago.

The regions of `harken.audio.vad`, told as they happen. Speech probabilities go in one by one, so how the samples of
the stream were cut changes nothing::

    endpointer = Endpointer(VadOptions(), sentence_pause_s=0.5, pause_s=1.0)
    for probability in detector.feed(samples):
        for happened in endpointer.hear(probability, sentence_ended=text.endswith(".")):
            ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harken.audio.vad import CHUNK_SAMPLES, Region, Regions, VadOptions
from harken.errors import OptionError
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES

LIMIT_FRAMES = 29 * FRAMES_PER_SECOND
"""So that an utterance and some silence behind it fit into one window."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class Began:
    """An utterance begins.

    Parameters
    ----------
    frame : int
        Its first mel frame in the stream; that is in the past, since some speech has to be heard to be believed, and
        sound is kept before it.
    """

    frame: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The utterance is over.

    Parameters
    ----------
    frame : int
        The mel frame behind its last one. All of it has been heard; with the limit, much behind it too.
    reason : {"silence", "sentence", "limit", "flush", "close"}
        As in `harken.streaming.events.SpeechEnded`.
    """

    frame: int
    reason: str

    @property
    def goes_on(self) -> bool:
        """Whether it was cut off while somebody spoke: the next utterance has begun, and continues this one."""
        return self.reason == "limit"


class Endpointer:
    """Utterances of one stream.

    Parameters
    ----------
    vad : VadOptions
        What counts as speech. `min_silence_s` and `max_region_s` are replaced by what is said here, and there is no
        more padding than half a pause.
    sentence_pause_s : float
        Silence that ends an utterance behind the end of a sentence.
    pause_s : float
        Silence that ends it anywhere. Both shrink from half the limit on, in proportion to what is left of it.
    limit_frames : int
        Longest utterance. One that goes on is cut in its longest silence, as a `Regions` does, and goes on behind that.

    Raises
    ------
    OptionError
        If a pause is not allowed, or the limit not as a `max_region_s`.

    Notes
    -----
    Utterances come in order of time and do not overlap. What is remembered does not grow with the stream.
    """

    def __init__(
        self, vad: VadOptions, *, sentence_pause_s: float, pause_s: float, limit_frames: int = LIMIT_FRAMES
    ) -> None:
        for name, value in (("sentence_pause_s", sentence_pause_s), ("pause_s", pause_s)):
            if not SHORTEST_PAUSE_S <= value <= LONGEST_PAUSE_S:
                raise OptionError(name, value, f"{SHORTEST_PAUSE_S:g} to {LONGEST_PAUSE_S:g} seconds")
        self._pauses_s = {"sentence": sentence_pause_s, "silence": pause_s}
        self._limit_frames = limit_frames
        self._regions = Regions(
            replace(
                vad,
                min_silence_s=pause_s,
                padding_s=min(vad.padding_s, pause_s / 2),
                max_region_s=limit_frames / FRAMES_PER_SECOND,
            )
        )
        self._heard_chunks = 0
        self._speaking = False

    def hear(self, probability: float, *, sentence_ended: bool) -> list[Began | Ended]:
        """Take the next speech probability, of `CHUNK_SAMPLES`, and return what happened.

        Parameters
        ----------
        probability : float
        sentence_ended : bool
            Whether what has been heard of the utterance by now is the end of a sentence.
        """
        self._heard_chunks += 1
        regions = self._regions.feed([probability])
        happened = self._ended(regions, "silence" if self.speaking_since is None else "limit")
        if not self._speaking and self.speaking_since is not None:
            self._speaking = True
            happened.append(Began(self.speaking_since))
        reason = "sentence" if sentence_ended else "silence"
        if self._speaking and self._regions.silence_s >= self._enough_s(self._pauses_s[reason]):
            happened += self._ended(self._regions.end_speech(), reason)
        return happened

    def flush(self, frames: int) -> list[Began | Ended]:
        """End the utterance that is going on, if there is one, where the stream has `frames` frames by now."""
        return self._ended(self._regions.flush(frames), "flush")

    def close(self, frames: int) -> list[Began | Ended]:
        """End the stream, which has `frames` frames."""
        return self._ended(self._regions.flush(frames), "close")

    @property
    def speaking_since(self) -> int | None:
        """First frame of the utterance that is going on; None while there is none."""
        return self._regions.speaking_since

    @property
    def needed_frames(self) -> int:
        """No utterance that goes on or is still to come has a frame before this one."""
        return self._regions.settled_frames

    def _enough_s(self, pause_s: float) -> float:
        """The pause that ends the utterance, as long as that is by now."""
        frames = self._heard_chunks * CHUNK_SAMPLES / HOP_SAMPLES - self.needed_frames
        patience = min(2 * (1 - frames / self._limit_frames), 1.0)
        return max(patience * pause_s, SHORTEST_PAUSE_S)

    def _ended(self, regions: Sequence[Region], reason: str) -> list[Began | Ended]:
        """What regions that have become certain say; usually of an utterance whose beginning has been told."""
        happened: list[Began | Ended] = []
        for start, end in regions:
            happened += [Ended(end, reason)] if self._speaking else [Began(start), Ended(end, reason)]
            self._speaking = False
        return happened

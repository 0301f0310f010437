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

from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, SpeechRegion, VadOptions
from harken.errors import OptionError
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES

MAX_UTTERANCE_FRAMES = 29 * FRAMES_PER_SECOND
"""So that an utterance and some silence behind it fit into one window."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class UtteranceStart:
    """An utterance begins.

    Parameters
    ----------
    frame : int
        Its first mel frame in the stream; that is in the past, since some speech has to be heard to be believed, and
        sound is kept before it.
    """

    frame: int


@dataclass(frozen=True, slots=True)
class UtteranceEnd:
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
    def is_continued(self) -> bool:
        """Whether it was cut off while somebody spoke: the next utterance has begun, and continues this one."""
        return self.reason == "limit"


class Endpointer:
    """Utterances of one stream.

    Parameters
    ----------
    vad : VadOptions
        What counts as speech. `min_silence_s` and `max_speech_s` are replaced by what is said here, and there is no
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
        If a pause is not allowed, or the limit not as a `max_speech_s`.

    Notes
    -----
    Utterances come in order of time and do not overlap. What is remembered does not grow with the stream.
    """

    def __init__(
        self,
        vad: VadOptions,
        *,
        sentence_pause_s: float,
        pause_s: float,
        max_utterance_frames: int = MAX_UTTERANCE_FRAMES,
    ) -> None:
        for name, value in (("sentence_pause_s", sentence_pause_s), ("pause_s", pause_s)):
            if not MIN_PAUSE_S <= value <= MAX_PAUSE_S:
                raise OptionError(name, value, f"{MIN_PAUSE_S:g} to {MAX_PAUSE_S:g} seconds")
        self._pauses_s = {"sentence": sentence_pause_s, "silence": pause_s}
        self._max_utterance_frames = max_utterance_frames
        self._regions = RegionTracker(
            replace(
                vad,
                min_silence_s=pause_s,
                speech_pad_s=min(vad.speech_pad_s, pause_s / 2),
                max_speech_s=max_utterance_frames / FRAMES_PER_SECOND,
            )
        )
        self._n_chunks = 0
        self._in_utterance = False

    def feed(self, probability: float, *, sentence_ended: bool) -> list[UtteranceStart | UtteranceEnd]:
        """Take the next speech probability, of `CHUNK_SAMPLES`, and return what happened.

        Parameters
        ----------
        probability : float
        sentence_ended : bool
            Whether what has been heard of the utterance by now is the end of a sentence.
        """
        self._n_chunks += 1
        regions = self._regions.feed([probability])
        endpoints = self._endpoints_of(regions, "silence" if self.utterance_start_frame is None else "limit")
        if not self._in_utterance and self.utterance_start_frame is not None:
            self._in_utterance = True
            endpoints.append(UtteranceStart(self.utterance_start_frame))
        reason = "sentence" if sentence_ended else "silence"
        if self._in_utterance and self._regions.trailing_silence_s >= self._required_pause_s(
            self._pauses_s[reason]
        ):
            endpoints += self._endpoints_of(self._regions.end_speech(), reason)
        return endpoints

    def flush(self, frames: int) -> list[UtteranceStart | UtteranceEnd]:
        """End the utterance that is going on, if there is one, where the stream has `frames` frames by now."""
        return self._endpoints_of(self._regions.flush(frames), "flush")

    def close(self, frames: int) -> list[UtteranceStart | UtteranceEnd]:
        """End the stream, which has `frames` frames."""
        return self._endpoints_of(self._regions.flush(frames), "close")

    @property
    def utterance_start_frame(self) -> int | None:
        """First frame of the utterance that is going on; None while there is none."""
        return self._regions.speaking_since

    @property
    def earliest_needed_frame(self) -> int:
        """No utterance that goes on or is still to come has a frame before this one."""
        return self._regions.stable_until_frames

    def _required_pause_s(self, pause_s: float) -> float:
        """The pause that ends the utterance, as long as that is by now."""
        frames = self._n_chunks * CHUNK_SAMPLES / HOP_SAMPLES - self.earliest_needed_frame
        pause_scale = min(2 * (1 - frames / self._max_utterance_frames), 1.0)
        return max(pause_scale * pause_s, MIN_PAUSE_S)

    def _endpoints_of(
        self, regions: Sequence[SpeechRegion], reason: str
    ) -> list[UtteranceStart | UtteranceEnd]:
        """What regions that have become certain say; usually of an utterance whose beginning has been told."""
        endpoints: list[UtteranceStart | UtteranceEnd] = []
        for start, end in regions:
            endpoints += (
                [UtteranceEnd(end, reason)]
                if self._in_utterance
                else [UtteranceStart(start), UtteranceEnd(end, reason)]
            )
            self._in_utterance = False
        return endpoints

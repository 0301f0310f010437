"""Endpointing of a stream: an utterance ends at a long pause, or at a shorter one after the end of a sentence.

The longer an utterance is, the shorter the pause that ends it, so that it ends at a pause that has just occurred. One
without any pause is split at its longest silence once it reaches the limit.

Utterances are the regions of `harken.audio.vad`, reported while they happen. Speech probabilities go in one by one, so
the result does not depend on how the samples of the stream were split into blocks::

    endpointer = Endpointer(VadOptions(), sentence_pause_s=0.5, pause_s=1.0)
    for probability in detector.feed(samples):
        for endpoint in endpointer.feed(probability, sentence_ended=text.endswith(".")):
            ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, SpeechRegion, VadOptions
from harken.errors import OptionError
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES

MAX_UTTERANCE_FRAMES = 29 * FRAMES_PER_SECOND
"""Leaves room for some silence after the utterance in one window."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class UtteranceStart:
    """The start of an utterance.

    Parameters
    ----------
    frame : int
        Its first mel frame in the stream. It lies in the past: speech must last for some time before it counts, and
        some audio before it is included.
    """

    frame: int


@dataclass(frozen=True, slots=True)
class UtteranceEnd:
    """The end of an utterance.

    Parameters
    ----------
    frame : int
        The mel frame after its last one. It lies in the past, with the limit often far in the past.
    reason : {"silence", "sentence", "limit", "flush", "close"}
        As in `harken.streaming.events.SpeechEnded`.
    """

    frame: int
    reason: str

    @property
    def is_continued(self) -> bool:
        """True if speech went on at the limit: the next utterance has begun and continues this one."""
        return self.reason == "limit"


class Endpointer:
    """The endpoint detector of one stream.

    Parameters
    ----------
    vad : VadOptions
        Options of the speech regions. The parameters below replace `min_silence_s` and `max_speech_s`, and
        `speech_pad_s` is at most half of `pause_s`.
    sentence_pause_s : float
        Silence that ends an utterance after the end of a sentence.
    pause_s : float
        Silence that ends it anywhere. Both shrink from half the limit on, in proportion to what is left of it.
    max_utterance_frames : int
        The limit: a longer utterance is split at its longest silence, as `RegionTracker` does.

    Raises
    ------
    OptionError
        If a pause is not allowed, or the limit is not allowed as `max_speech_s`.

    Notes
    -----
    Utterances come in order of time and do not overlap. The state does not grow with the stream.
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
        """Take the speech probability of the next `CHUNK_SAMPLES` and return the new endpoints.

        Parameters
        ----------
        probability : float
        sentence_ended : bool
            True if the text of the utterance so far ends a sentence.
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
        """End the current utterance, if there is one, in a stream of `frames` frames so far."""
        return self._endpoints_of(self._regions.flush(frames), "flush")

    def close(self, frames: int) -> list[UtteranceStart | UtteranceEnd]:
        """End the stream, which has `frames` frames."""
        return self._endpoints_of(self._regions.flush(frames), "close")

    @property
    def utterance_start_frame(self) -> int | None:
        """First frame of the current utterance; None while there is none."""
        return self._regions.speaking_since

    @property
    def silence_start_frame(self) -> int | None:
        """First frame of the silence in which the current utterance is; None while there is speech."""
        silence_s = self._regions.trailing_silence_s
        if not (self._in_utterance and silence_s):
            return None
        return self._n_chunks * CHUNK_SAMPLES // HOP_SAMPLES - round(silence_s * FRAMES_PER_SECOND)

    @property
    def earliest_needed_frame(self) -> int:
        """The first frame that the current utterance or a later one may contain."""
        return self._regions.stable_until_frames

    def _required_pause_s(self, pause_s: float) -> float:
        """Return the pause that ends an utterance of the current length."""
        frames = self._n_chunks * CHUNK_SAMPLES / HOP_SAMPLES - self.earliest_needed_frame
        pause_scale = min(2 * (1 - frames / self._max_utterance_frames), 1.0)
        return max(pause_scale * pause_s, MIN_PAUSE_S)

    def _endpoints_of(
        self, regions: Sequence[SpeechRegion], reason: str
    ) -> list[UtteranceStart | UtteranceEnd]:
        """Return the endpoints of completed regions, without starts that have been reported already."""
        endpoints: list[UtteranceStart | UtteranceEnd] = []
        for start, end in regions:
            endpoints += (
                [UtteranceEnd(end, reason)]
                if self._in_utterance
                else [UtteranceStart(start), UtteranceEnd(end, reason)]
            )
            self._in_utterance = False
        return endpoints

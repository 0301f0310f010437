"""The baseline of live transcription: everything up to 30 s is encoded again for every update.

This is the method of whisper_streaming (github.com/ufal/whisper_streaming, whisper_online.py; Macháček et al. 2023,
"Turning Whisper into real-time transcription system"), with harken's offline pass in place of its engine: the same
weights, runtime and threads as in the sessions beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harken import Recognizer, TranscribeOptions
from harken.results import Segment, Word
from harken.streaming import Event, FinalSegment, Interim
from harken.types import SAMPLE_RATE

PROMPT_CHARACTERS = 200
SAME_START_S = 1.0
LONGEST_OVERLAP = 5


class Agreement:
    """LocalAgreement-2: the words with which two successive hypotheses begin (`HypothesisBuffer`).

    Attributes
    ----------
    committed : list of Word
    tentative : list of Word
        The rest of the last hypothesis.
    """

    def __init__(self) -> None:
        self.committed: list[Word] = []
        self.tentative: list[Word] = []

    @property
    def until_s(self) -> float:
        """End of the last committed word."""
        return self.committed[-1].end_s if self.committed else 0.0

    def add(self, words: list[Word], buffered_s: float) -> None:
        """Add a hypothesis of the audio since `buffered_s`."""
        fresh = [word for word in words if word.start_s > self.until_s - 0.1]
        known = [word for word in self.committed if word.end_s > buffered_s]
        if fresh and abs(fresh[0].start_s - self.until_s) < SAME_START_S:
            fresh = fresh[_overlap(known, fresh) :]
        agreed = 0
        for one, other in zip(self.tentative, fresh, strict=False):
            if one.text != other.text:
                break
            agreed += 1
        self.committed += fresh[:agreed]
        self.tentative = fresh[agreed:]


def _overlap(known: list[Word], fresh: list[Word]) -> int:
    """Return the number of words with which the new ones begin and the known ones end."""
    for count in range(1, min(len(known), len(fresh), LONGEST_OVERLAP) + 1):
        if [word.text for word in known[-count:]] == [word.text for word in fresh[:count]]:
            return count
    return 0


@dataclass
class LocalAgreement:
    """A session that transcribes its whole buffer every second (`OnlineASRProcessor`).

    Parameters
    ----------
    recognizer : Recognizer
    options : TranscribeOptions
    every_s : float
        Audio between two updates.
    trim_s : float
        From this length on the buffer is cut behind committed segments; 15 s is the reference's default.
    """

    recognizer: Recognizer
    options: TranscribeOptions
    every_s: float = 1.0
    trim_s: float = 15.0

    def __post_init__(self) -> None:
        self._buffer = np.zeros(0, np.float32)
        self._pieces: list[np.ndarray] = []
        self._waiting = self._samples = 0
        self._start_s = 0.0
        self._agreement = Agreement()

    def feed(self, samples: np.ndarray) -> list[Event]:
        """Add samples, and transcribe the buffer once there are enough new ones."""
        self._pieces.append(samples)
        self._waiting += len(samples)
        self._samples += len(samples)
        return [self._update()] if self._waiting >= self.every_s * SAMPLE_RATE else []

    def close(self) -> list[Event]:
        """Transcribe the rest, and commit all of it."""
        events: list[Event] = [self._update()] if self._waiting else []
        words = self._agreement.committed + self._agreement.tentative
        if not words:
            return events
        segment = Segment(
            index=0, start_s=words[0].start_s, end_s=words[-1].end_s, text=_text(words), tokens=(), temperature=0.0,
            avg_logprob=0.0, compression_ratio=1.0, no_speech_prob=0.0, seek_s=0.0,
        )  # fmt: skip
        return [*events, FinalSegment(**self._times(), segment=segment)]

    def _update(self) -> Event:
        self._buffer = np.concatenate([self._buffer, *self._pieces])
        self._pieces, self._waiting = [], 0
        options = replace(self.options, word_timestamps=True, initial_prompt=self._prompt() or None)
        segments = self.recognizer.transcribe(self._buffer, options).result().segments
        words = [self._shifted(word) for segment in segments for word in segment.words]
        self._agreement.add(words, self._start_s)
        if len(self._buffer) > self.trim_s * SAMPLE_RATE:
            self._trim([segment.end_s + self._start_s for segment in segments])
        agreement = self._agreement
        return Interim(
            **self._times(), committed=_text(agreement.committed), tentative=_text(agreement.tentative)
        )

    def _prompt(self) -> str:
        """Return the end of the committed text that is no longer in the buffer."""
        return _text(w for w in self._agreement.committed if w.end_s <= self._start_s)[-PROMPT_CHARACTERS:]

    def _trim(self, ends_s: list[float]) -> None:
        done = [end_s for end_s in ends_s[:-1] if end_s <= self._agreement.until_s]
        if done:
            self._buffer = self._buffer[round((done[-1] - self._start_s) * SAMPLE_RATE) :]
            self._start_s = done[-1]

    def _shifted(self, word: Word) -> Word:
        return replace(word, start_s=word.start_s + self._start_s, end_s=word.end_s + self._start_s)

    def _times(self) -> dict[str, float | int]:
        return {"audio_s": self._samples / SAMPLE_RATE, "emitted_samples": self._samples, "compute_s": 0.0}


def _text(words) -> str:
    return "".join(word.text for word in words)

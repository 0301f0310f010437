"""Diarization of recordings: a `Diarizer` holds the models, a `Diarization` what was heard of one recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from harken.audio import AudioSource, stream_audio
from harken.contract import Floats
from harken.errors import OptionError, refuse_pickling
from harken.option_types import check, option
from harken.results import Segment, Speaker, SpeakerTurn, speakers_of
from harken.speakers.attribution import SpeakerAttribution
from harken.speakers.clustering import find_turns, find_voices
from harken.speakers.embedding import EmbeddingModel
from harken.speakers.live import DEFAULT_DELAY_S, LiveDiarization, checked_delay
from harken.speakers.pieces import SegmentationModel, SpeechPieces
from harken.speakers.voices import MIN_SAMPLE_S, Voice, letters, name_speakers

MAX_SPEAKERS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerOptions:
    """Options of diarization.

    Attributes
    ----------
    num_speakers : int or None
        Number of speakers, if it is known: the recording is divided among that many voices, or fewer where it has not
        that many pieces of speech.
    min_speakers, max_speakers : int or None
        Bounds of the number of speakers, if it is not known.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    num_speakers: int | None = option(None, low=1, high=MAX_SPEAKERS)
    min_speakers: int | None = option(None, low=1, high=MAX_SPEAKERS)
    max_speakers: int | None = option(None, low=1, high=MAX_SPEAKERS)

    def __post_init__(self) -> None:
        check(self)
        if self.num_speakers is not None and (self.min_speakers, self.max_speakers) != (None, None):
            raise OptionError("num_speakers", self.num_speakers, "no number with min_speakers or max_speakers")
        if self.min_speakers and self.max_speakers and self.min_speakers > self.max_speakers:
            raise OptionError("min_speakers", self.min_speakers, f"at most max_speakers={self.max_speakers}")

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most speakers."""
        if self.num_speakers is not None:
            return self.num_speakers, self.num_speakers
        return self.min_speakers or 1, self.max_speakers or MAX_SPEAKERS


class Diarizer:
    """Loaded models that tell speakers apart; it holds no state of any recording.

    Parameters
    ----------
    segmentation : SegmentationModel
    embedding : EmbeddingModel
    options : SpeakerOptions
    voices : tuple of Voice
        Known people; speakers who are nobody of them are A, B, C, ...
    """

    def __init__(
        self,
        segmentation: SegmentationModel,
        embedding: EmbeddingModel,
        options: SpeakerOptions,
        voices: tuple[Voice, ...] = (),
    ) -> None:
        self._segmentation, self._embedding = segmentation, embedding
        self.options, self.voices = options, voices

    __reduce__ = refuse_pickling

    def begin(self) -> Diarization:
        """Begin with a recording, whose samples are fed."""
        return Diarization(SpeechPieces(self._segmentation, self._embedding), self.options, self.voices)

    def with_options(self, options: SpeakerOptions) -> Diarizer:
        """Return a diarizer with other options."""
        return Diarizer(self._segmentation, self._embedding, options, self.voices)

    def with_voices(self, voices: Mapping[str, AudioSource] | Iterable[Voice]) -> Diarizer:
        """Return a diarizer that recognises further people; one of a name that is known replaces that one.

        Parameters
        ----------
        voices : mapping of str to path, file or ndarray; or iterable of Voice
            Samples of their speech by name, a few seconds of one person each; or voices of a file (see
            `harken.speakers.voices.read_voices`).

        Raises
        ------
        AudioError
            If a sample cannot be read.
        OptionError
            If a sample has less than a second of speech, a name is not allowed, or a voice is of another model.
        """
        if isinstance(voices, Mapping):
            voices = [self._voice(name, audio) for name, audio in voices.items()]
        known = {voice.name: voice for voice in (*self.voices, *voices)}
        size = self._embedding.size
        for voice in known.values():
            if len(voice.embedding) != size:
                raise OptionError("voices", voice.name, f"voices of this model, of {size} numbers each")
        return Diarizer(self._segmentation, self._embedding, self.options, tuple(known.values()))

    def _voice(self, name: str, audio: AudioSource) -> Voice:
        """Return the voice of the one who says most in a sample."""
        embedding, seconds = self.diarize(audio).main_voice
        if seconds < MIN_SAMPLE_S:
            allowed = f"a recording with at least {MIN_SAMPLE_S:g} s of speech; it has {seconds:.1f} s"
            raise OptionError("voices", name, allowed)
        return Voice(name, embedding, seconds)

    def begin_live(self, delay_s: float = DEFAULT_DELAY_S) -> LiveDiarization:
        """Begin with a live stream.

        Parameters
        ----------
        delay_s : float
            Seconds from 1 to 60 after which nothing that was said about the stream changes any more.

        Raises
        ------
        OptionError
            If the delay is not in this range.
        """
        return LiveDiarization(
            self._segmentation,
            self._embedding,
            delay_s=checked_delay(delay_s),
            most=self.options.bounds[1],
            known={voice.name: voice.embedding for voice in self.voices},
        )

    def diarize(self, audio: AudioSource) -> Diarization:
        """Return who speaks when in a recording.

        Parameters
        ----------
        audio : path, "-", file or ndarray
            As for `harken.Recognizer.transcribe`.

        Raises
        ------
        AudioError
            If the recording cannot be read.
        """
        diarization = self.begin()
        for _ in diarization.listen(stream_audio(audio)):
            pass
        return diarization


class Diarization:
    """The speakers of one recording and their turns, as far as its samples have been fed.

    Parameters
    ----------
    speech : SpeechPieces
    options : SpeakerOptions
    voices : tuple of Voice
        Known people.
    """

    def __init__(self, speech: SpeechPieces, options: SpeakerOptions, voices: tuple[Voice, ...] = ()) -> None:
        self._speech, self._options, self._voices = speech, options, voices
        self._n_pieces = -1
        self._turns: tuple[SpeakerTurn, ...] = ()

    def feed(self, samples: Floats) -> None:
        """Take the next samples, mono float32 at 16 kHz."""
        self._speech.feed(samples)

    def flush(self) -> None:
        """End the recording."""
        self._speech.flush()

    def listen(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """Yield the blocks of a recording, each after it has been fed, and end with the last."""
        try:
            for block in blocks:
                self.feed(block)
                yield block
        finally:
            self.flush()

    @property
    def turns(self) -> tuple[SpeakerTurn, ...]:
        """Turns of all speakers, in order of their start; those of two speakers may overlap."""
        n_pieces = len(self._speech.found)
        if self._n_pieces != n_pieces:
            self._turns, self._n_pieces = self._find_turns(), n_pieces
        return self._turns

    @property
    def speakers(self) -> tuple[Speaker, ...]:
        """Speakers in order of appearance."""
        return speakers_of(self.turns)

    @property
    def main_voice(self) -> tuple[Floats, float]:
        """Embedding of who says most, and the seconds of it; zeros where nobody speaks."""
        pieces = self._speech.found
        if not pieces:
            return np.zeros(0, np.float32), 0.0
        voices = find_voices(pieces, *self._options.bounds)
        seconds = np.bincount(voices.labels, [piece.seconds for piece in pieces])
        main = int(seconds.argmax())
        return voices.centroids[main].astype(np.float32), float(seconds[main])

    def attribute(self, segments: Sequence[Segment], encode: Callable[[str], Sequence[int]]) -> list[Segment]:
        """Return segments with their speakers, cut where the main speaker changes.

        Parameters
        ----------
        segments : sequence of Segment
            With words; a segment without is not cut.
        encode : callable
            Returns the tokens of a text, for segments that are cut.
        """
        return SpeakerAttribution(self.turns, encode).segments(segments)

    def _find_turns(self) -> tuple[SpeakerTurn, ...]:
        pieces = [*self._speech.found]  # another thread may add to them
        if not pieces:
            return ()
        voices = find_voices(pieces, *self._options.bounds)
        turns = find_turns(self._speech, pieces, voices.labels)
        known = name_speakers(voices.centroids, self._voices)
        unknown = (name for name in map(letters, count()) if name not in known)
        names = {voice: known[voice] or next(unknown) for voice in dict.fromkeys(voice for *_, voice in turns)}
        return tuple(
            SpeakerTurn(start_s=start_s, end_s=end_s, speaker=names[voice]) for start_s, end_s, voice in turns
        )

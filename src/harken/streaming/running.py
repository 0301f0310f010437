"""An utterance while it is spoken: what was heard of it, and what is said in it by now."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from harken.audio.mel import FFT_SAMPLES, SILENCE, LogMel, normalize
from harken.contract import Encoder, Floats
from harken.decoding import Grown
from harken.streaming.policy import ended, settled
from harken.streaming.setting import MOST_AGREEMENT, Setting
from harken.text import Tokenizer
from harken.types import FRAMES_PER_STEP, HOP_SAMPLES

QUIET_FRAMES = 100
"""Silence that is heard behind the sound so far: without it a decoder repeats itself."""
CLOSING_QUIET_FRAMES = 400
"""And behind the end of an utterance, where nothing else stops it."""
ROUND_FRAMES = 100
"""To which the last window is rounded up, so that there are few shapes to compile for."""
MARGIN_FRAMES = 16
"""What is said in the last of the sound is not guessed at yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A token that is committed.

    Parameters
    ----------
    token : int
    logprob : float
    start, end : int
        Positions of the utterance: the one that it listens to, and where it ends.
    """

    token: int
    logprob: float
    start: int
    end: int

    def moved(self, positions: int) -> Spoken:
        """The same token in an utterance that begins so many positions later."""
        return replace(self, start=self.start - positions, end=self.end - positions)

    def until(self, position: int) -> Spoken:
        """The same token in an utterance that ends at a position."""
        return replace(self, start=min(self.start, position), end=min(self.end, position))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is said before some place of an utterance, and behind it, as an utterance that begins there counts it.

    Parameters
    ----------
    before : list of Spoken
        Tokens, tentative ones included unless they are doubted.
    committed : list of Spoken
    tentative : tuple of int
    """

    before: list[Spoken]
    committed: list[Spoken]
    tentative: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sound:
    """The next window of an utterance.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, frames), float32
    keep : int
        As for `harken.contract.Backend.hear`.
    positions : int
        How many positions of the whole utterance hold sound.
    margin : int
        As for `harken.decoding.Growing`.
    """

    mel: Floats
    keep: int
    positions: int
    margin: int


@dataclass(slots=True, eq=False, kw_only=True)
class Running:
    """One utterance of a stream.

    Parameters
    ----------
    encoder : Encoder
        That has heard nothing yet.
    n_mels : int
    start_frame : int
        Where it begins in the stream.
    committed : list of Spoken
        Tokens that stand; those of an utterance that was cut, in the beginning.
    tentative : tuple of int
        What is said behind them by the last hypothesis.
    language : str or None
        Code of its language, once it is known.

    Attributes
    ----------
    heard : Grown or None
        The last hypothesis.
    seen_frames : int
        How much of it the last update heard.
    doubted : bool
        Whether nothing of the last hypothesis is believed.
    """

    encoder: Encoder
    n_mels: int
    start_frame: int
    committed: list[Spoken] = field(default_factory=list)
    tentative: tuple[int, ...] = ()
    language: str | None = None
    heard: Grown | None = None
    seen_frames: int = 0
    no_speech_prob: float = 0.0
    doubted: bool = False
    _earlier: list[tuple[int, ...]] = field(default_factory=list)
    _mel: LogMel = field(init=False)
    _frames: Floats = field(init=False)
    _taken_samples: int = 0

    def __post_init__(self) -> None:
        self._mel = LogMel(self.n_mels)
        self._frames = np.empty((self.n_mels, 0), np.float32)

    @property
    def start_sample(self) -> int:
        """Its first sample in the stream."""
        return self.start_frame * HOP_SAMPLES

    @property
    def tokens(self) -> tuple[int, ...]:
        """All that is said in it by now."""
        return (*(spoken.token for spoken in self.committed), *self.tentative)

    @property
    def wanted_sample(self) -> int:
        """Sample of the stream behind those that have been taken."""
        return self.start_sample + self._taken_samples

    def due_sample(self, setting: Setting) -> int:
        """Sample of the stream behind the last one that the next update needs.

        The convolutions see one frame behind the window, and half of that frame's FFT lies behind its centre.
        """
        frames = self.seen_frames + setting.hop_frames
        return self.start_sample + frames * HOP_SAMPLES + FFT_SAMPLES // 2

    def take_samples(self, samples: Floats) -> None:
        """Take the next samples, float32 at 16 kHz, from `wanted_sample` on."""
        self._taken_samples += len(samples)
        self._frames = np.concatenate([self._frames, self._mel.feed(samples)], axis=1)

    def next_window(self, setting: Setting) -> Sound:
        """Hear on as far as whole hops go in what has been taken."""
        hops = (self._frames.shape[1] - 1 - self.seen_frames) // setting.hop_frames
        self.seen_frames += hops * setting.hop_frames
        first = self.encoder.kept * FRAMES_PER_STEP
        next_frames = self.seen_frames + setting.hop_frames - first
        # While there is no history, what would be history is heard again too: beginnings need what follows them.
        most = setting.window_frames if first else setting.longest_window_frames
        keep = next_frames - setting.window_frames if next_frames > most else 0
        return Sound(
            mel=self._with_silence(self._frames[:, first : self.seen_frames + 1], QUIET_FRAMES),
            keep=min(keep, self.seen_frames - first) // FRAMES_PER_STEP * FRAMES_PER_STEP,
            positions=self.seen_frames // FRAMES_PER_STEP,
            margin=MARGIN_FRAMES // FRAMES_PER_STEP,
        )

    def last_window(self, end_frame: int) -> Sound:
        """Hear the rest, up to a frame of the stream."""
        first = self.encoder.kept * FRAMES_PER_STEP
        self.seen_frames = max(end_frame - self.start_frame, first)
        if self._frames.shape[1] < self.seen_frames:
            self._frames = np.concatenate([self._frames, self._mel.flush()], axis=1)
        sound = self._frames[:, first : self.seen_frames]
        quiet = CLOSING_QUIET_FRAMES + -(sound.shape[1] + CLOSING_QUIET_FRAMES) % ROUND_FRAMES
        mel = self._with_silence(sound, quiet)
        return Sound(mel=mel, keep=mel.shape[1], positions=-(-self.seen_frames // FRAMES_PER_STEP), margin=0)

    def take(self, grown: Grown, setting: Setting, tokenizer: Tokenizer) -> None:
        """Take a hypothesis, and commit what will not change in it; nothing before the language is known.

        Parameters
        ----------
        grown : Grown
        setting : Setting
        tokenizer : Tokenizer
        """
        self.doubted = False
        if self.language is None:
            self._commit(grown, 0)
            return
        _, words = tokenizer.split_words(grown.tokens, self.language)
        lengths = [*map(len, words)]
        positions = self.seen_frames // FRAMES_PER_STEP
        self._commit(grown, settled(grown.tokens, grown.places, lengths, self._earlier, positions, setting))

    def take_last(self, grown: Grown) -> None:
        """Take the last hypothesis, and commit all of it."""
        self.doubted = False
        self._commit(grown, len(grown.tokens))

    def doubt(self, grown: Grown) -> None:
        """Take a hypothesis of which nothing is believed yet: it is the next draft, and that is all."""
        self.doubted = True
        self._commit(grown, 0)

    def _commit(self, grown: Grown, count: int) -> None:
        """Take a hypothesis, so many tokens of which are final."""
        if grown.no_speech_prob is not None:
            self.no_speech_prob = grown.no_speech_prob
        self.heard = grown
        self.committed += self._spoken(grown)[:count]
        self.tentative = grown.tokens[count:]
        kept = [its[count:] for its in self._earlier if its[:count] == grown.tokens[:count]]
        self._earlier = [self.tentative, *kept][:MOST_AGREEMENT]

    def has_decoded(self, frame: int) -> bool:
        """Whether all that is said before a frame of the stream has been decoded: the margin lies behind it."""
        return frame <= self.start_frame + self.seen_frames - MARGIN_FRAMES

    def cut(self, frame: int, tokenizer: Tokenizer) -> Cut:
        """Cut what is said at a frame of the stream, between words."""
        position = (frame - self.start_frame) // FRAMES_PER_STEP
        spoken = [*self.committed, *self._pending()]
        _, words = tokenizer.split_words([its.token for its in spoken], self.language or "en")
        starts = [0, *accumulate(map(len, words))]
        # By the middle of a word: its first token may listen to the silence before it.
        first = next(
            (at for at, end in pairwise(starts) if spoken[at].start + spoken[end - 1].end >= 2 * position),
            len(spoken),
        )
        behind = [its.moved(position) for its in spoken[first:]]
        committed = max(0, len(self.committed) - first)
        return Cut(
            before=[] if self.doubted else [its.until(position) for its in spoken[:first]],
            committed=behind[:committed],
            tentative=tuple(its.token for its in behind[committed:]),
        )

    def _pending(self) -> list[Spoken]:
        """Tentative tokens with what is known of them."""
        if self.heard is None or not self.tentative:
            return []
        return self._spoken(self.heard)[-len(self.tentative) :]

    def _spoken(self, grown: Grown) -> list[Spoken]:
        """Tokens of a hypothesis: none listens to what is before the committed ones, whatever it does."""
        floor = self.committed[-1].end if self.committed else 0
        places = np.maximum(grown.places, floor).tolist()
        return [
            Spoken(token=token, logprob=logprob, start=place, end=ended(place, behind))
            for token, logprob, place, behind in zip(
                grown.tokens, grown.logprobs, places[:-1], places[1:], strict=True
            )
        ]

    def _with_silence(self, frames: Floats, quiet: int) -> Floats:
        """Frames as the encoder takes them, with silence behind them."""
        ceiling = float(np.max(self._frames[:, : self.seen_frames + 1], initial=SILENCE))
        silence = np.full((self.n_mels, quiet), SILENCE, np.float32)
        return normalize(np.concatenate([frames, silence], axis=1), ceiling)
